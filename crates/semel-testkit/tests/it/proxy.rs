//! The fault proxy, in front of a server that counts the lines it was sent and answers each.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use semel_testkit::proxy::Proxy;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};

/// A server and the proxy in front of it.
struct World {
    proxy: Proxy,
    carried_out: Arc<AtomicU32>,
}

impl World {
    async fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let proxy = Proxy::start(listener.local_addr().unwrap()).await.unwrap();
        let carried_out = Arc::new(AtomicU32::new(0));
        let count = Arc::clone(&carried_out);
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let count = Arc::clone(&count);
                tokio::spawn(async move {
                    let mut stream = BufReader::new(stream);
                    let mut line = String::new();
                    while stream.read_line(&mut line).await.is_ok_and(|read| read > 0) {
                        if !line.ends_with('\n') {
                            return;
                        }
                        count.fetch_add(1, Ordering::SeqCst);
                        if stream.write_all(line.as_bytes()).await.is_err() {
                            return;
                        }
                        line.clear();
                    }
                });
            }
        });
        Self { proxy, carried_out }
    }

    async fn client(&self) -> Client {
        Client(BufReader::new(
            TcpStream::connect(self.proxy.addr()).await.unwrap(),
        ))
    }

    fn carried_out(&self) -> u32 {
        self.carried_out.load(Ordering::SeqCst)
    }
}

struct Client(BufReader<TcpStream>);

impl Client {
    /// The answer, or nothing when the connection was cut first.
    async fn ask(&mut self, line: &str) -> Option<String> {
        self.0.write_all(format!("{line}\n").as_bytes()).await.ok()?;
        self.answer().await
    }

    async fn answer(&mut self) -> Option<String> {
        let mut answer = String::new();
        self.0.read_line(&mut answer).await.ok()?;
        answer.strip_suffix('\n').map(ToOwned::to_owned)
    }
}

#[tokio::test]
async fn a_dropped_reply_means_the_request_was_carried_out() {
    let world = World::new().await;
    let (mut one, mut two) = (world.client().await, world.client().await);
    assert_eq!(one.ask("begin").await.as_deref(), Some("begin"));
    world.proxy.drop_reply_to(b"commit");
    assert_eq!(two.ask("other").await.as_deref(), Some("other"));
    assert_eq!(one.ask("commit").await, None);
    world.proxy.hit(1).await;
    assert_eq!(world.carried_out(), 3);
    assert_eq!(
        world.client().await.ask("commit").await.as_deref(),
        Some("commit")
    );
    world.proxy.drop_reply();
    assert_eq!(two.ask("again").await, None);
    assert_eq!((world.carried_out(), world.proxy.hits()), (5, 2));
}

#[tokio::test]
async fn a_dropped_request_never_reaches_the_server() {
    let world = World::new().await;
    let mut client = world.client().await;
    world.proxy.drop_request(b"commit");
    assert_eq!(client.ask("commit").await, None);
    assert_eq!((world.carried_out(), world.proxy.hits()), (0, 1));
}

#[tokio::test]
async fn a_connection_is_cut_in_the_middle_of_a_request_or_an_answer() {
    let world = World::new().await;
    let mut client = world.client().await;
    world.proxy.cut_after(4);
    assert_eq!(client.ask("request").await, None);
    assert_eq!(world.carried_out(), 0);
    let mut client = world.client().await;
    world.proxy.cut_reply_after(4);
    assert_eq!(client.ask("request").await, None);
    assert_eq!(world.carried_out(), 1);
}

#[tokio::test]
async fn a_paused_proxy_holds_data_back_and_hands_it_on_later() {
    let world = World::new().await;
    let mut client = world.client().await;
    assert!(client.ask("x").await.is_some());
    world.proxy.pause();
    client.0.write_all(b"held\n").await.unwrap();
    let early = tokio::time::timeout(std::time::Duration::from_millis(50), client.answer()).await;
    assert!(early.is_err() && world.carried_out() == 1);
    world.proxy.resume();
    assert_eq!(client.answer().await.as_deref(), Some("held"));
}

#[tokio::test]
async fn open_connections_can_be_cut_and_new_ones_refused() {
    let world = World::new().await;
    let mut client = world.client().await;
    assert!(client.ask("x").await.is_some());
    world.proxy.cut();
    assert_eq!(client.answer().await, None);
    world.proxy.refuse(true);
    assert_eq!(world.client().await.ask("x").await, None);
    world.proxy.refuse(false);
    assert!(world.client().await.ask("x").await.is_some());
    world.proxy.delay(std::time::Duration::from_millis(30));
    let begun = std::time::Instant::now();
    assert!(world.client().await.ask("x").await.is_some());
    assert!(begun.elapsed() >= std::time::Duration::from_millis(60));
}
