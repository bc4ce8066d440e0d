//! A real Kafka that tests can kill.

use std::net::TcpStream;

use semel_testkit::servers::{KafkaServer, kafka};

#[test]
fn a_killed_broker_starts_again_with_its_topics_and_a_dropped_one_leaves_nothing() {
    let mut server = KafkaServer::start();
    let topic = server.fresh_topic(3);
    server.kill();
    assert!(
        TcpStream::connect(("127.0.0.1", server.port())).is_err(),
        "it still listens after kill -9"
    );
    server.restart();
    let again = std::panic::catch_unwind(|| server.create_topic(&topic, 3, &[]));
    assert!(again.is_err(), "the topic was forgotten");
    server.stop();
    server.restart();
    server.pause();
    server.resume();
    let _ = server.fresh_topic(1);
    let port = server.port();
    drop(server);
    assert!(
        TcpStream::connect(("127.0.0.1", port)).is_err(),
        "something still listens"
    );
}

#[test]
fn tests_of_one_process_share_a_broker() {
    assert_eq!(kafka().port(), kafka().port());
    assert_ne!(kafka().fresh_topic(1), kafka().fresh_topic(1));
}
