//! The launcher leaves nothing behind.

use semel_testkit::servers::{PostgresServer, postgres};

#[test]
fn a_killed_server_starts_again_and_a_dropped_one_leaves_nothing() {
    let mut server = PostgresServer::start();
    let url = server.fresh_database();
    assert!(url.contains(&server.port().to_string()));
    server.kill();
    server.restart();
    let _ = server.fresh_database();
    let port = server.port();
    drop(server);
    assert!(
        std::net::TcpStream::connect(("127.0.0.1", port)).is_err(),
        "something still listens"
    );
    let _ = postgres().fresh_database();
}
