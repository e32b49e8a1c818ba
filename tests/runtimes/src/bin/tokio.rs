//! tokio, its threads and its mio.

use runtimes::{Role, message, role};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

#[tokio::main(worker_threads = 2)]
async fn main() {
    match role() {
        Role::Server { port } => {
            let listener = TcpListener::bind(("127.0.0.1", port)).await.expect("bind");
            loop {
                let (mut stream, _) = listener.accept().await.expect("accept");
                tokio::spawn(async move {
                    let mut buf = vec![0; 16384];
                    while let Ok(n @ 1..) = stream.read(&mut buf).await {
                        stream.write_all(&buf[..n]).await.expect("write");
                    }
                });
            }
        }
        Role::Client { port, connections, rounds } => {
            let mut tasks = Vec::new();
            for c in 0..connections {
                tasks.push(tokio::spawn(async move {
                    let mut stream = TcpStream::connect(("127.0.0.1", port)).await.expect("connect");
                    let mut right = 0;
                    for round in 0..rounds {
                        let sent = message(c, round);
                        stream.write_all(&sent).await.expect("write");
                        let mut came = vec![0; sent.len()];
                        stream.read_exact(&mut came).await.expect("read");
                        right += usize::from(came == sent);
                    }
                    right
                }));
            }
            let mut right = 0;
            for task in tasks {
                right += task.await.expect("task");
            }
            println!("{right}");
        }
    }
}
