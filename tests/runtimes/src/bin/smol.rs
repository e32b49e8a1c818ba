//! smol: async-io and polling, which make their epoll calls through rustix, past libc.

use runtimes::{Role, message, role};
use smol::io::{AsyncReadExt, AsyncWriteExt};
use smol::net::{TcpListener, TcpStream};

fn main() {
    smol::block_on(async {
        match role() {
            Role::Server { port } => {
                let listener = TcpListener::bind(("127.0.0.1", port)).await.expect("bind");
                loop {
                    let (mut stream, _) = listener.accept().await.expect("accept");
                    smol::spawn(async move {
                        let mut buf = vec![0; 16384];
                        while let Ok(n @ 1..) = stream.read(&mut buf).await {
                            stream.write_all(&buf[..n]).await.expect("write");
                        }
                    })
                    .detach();
                }
            }
            Role::Client { port, connections, rounds } => {
                let mut tasks = Vec::new();
                for c in 0..connections {
                    tasks.push(smol::spawn(async move {
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
                    right += task.await;
                }
                println!("{right}");
            }
        }
    });
}
