//! What the programs share: `PROGRAM server PORT` echoes until it is ended; `PROGRAM client PORT
//! CONNECTIONS ROUNDS` sends messages, checks what comes back, and prints how many came back right.
//! Waiting is the runtime's own affair.

/// The command line.
pub enum Role {
    Server { port: u16 },
    Client { port: u16, connections: usize, rounds: usize },
}

pub fn role() -> Role {
    let args: Vec<String> = std::env::args().collect();
    let number = |n: usize| args.get(n).and_then(|a| a.parse::<usize>().ok()).expect("usage: server PORT | client PORT CONNECTIONS ROUNDS");
    match args.get(1).map(String::as_str) {
        Some("server") => Role::Server { port: number(2) as u16 },
        _ => Role::Client { port: number(2) as u16, connections: number(3), rounds: number(4) },
    }
}

/// The message of a round: its length differs from round to round.
pub fn message(connection: usize, round: usize) -> Vec<u8> {
    let length = 64 + round * 977 % 4000;
    (0..length).map(|i| (connection * 31 + round * 7 + i) as u8).collect()
}
