//! Several threads at both ends.

use super::*;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};

/// Each lane has a producer and a consumer thread at each end; a thread of each end only polls.
/// Threads find the turn and the poll taken by each other all the time; nothing is lost, and nobody
/// hangs.
#[test]
fn threads_may_kick_and_poll_at_the_same_time() {
    const LANES: u16 = 1;
    let bytes: u64 = few(40_000, 400) as u64;
    for &(model, immediate) in WAYS {
        let mut rig = Rig::new(Order::Prompt, model, settings(immediate));
        rig.open(LANES);
        let tids = AtomicU32::new(10);
        let running = AtomicU32::new(0);
        let stop = AtomicBool::new(false);
        let busy = AtomicU64::new(0);
        std::thread::scope(|s| {
            for end in &mut rig.ends {
                let (hub, lanes) = (&end.hub, end.lanes.as_ref().unwrap());
                let (tids, running, stop, busy) = (&tids, &running, &stop, &busy);
                let poll = move |tid| match hub
                    .poll(tid, &mut |_, news| assert!(!matches!(news, News::Lost(_)), "{news:?}"))
                {
                    // So that who has the fabric's lock gets the CPU: it spins.
                    Ok(0) => std::thread::yield_now(),
                    Ok(_) => {}
                    Err(PollError::Busy) => {
                        busy.fetch_add(1, Relaxed);
                        std::thread::yield_now();
                    }
                    Err(e) => panic!("{e:?}"),
                };
                s.spawn(move || {
                    let tid = tids.fetch_add(1, Relaxed);
                    while !stop.load(Relaxed) {
                        poll(tid);
                        std::thread::yield_now();
                    }
                });
                for conn in end.conns.iter_mut().flatten() {
                    let Conn { lane, stream, words, producer, consumer, written, read } = conn;
                    let (lane, stream) = (*lane, *stream);
                    // SAFETY: freed after the threads are gone.
                    let inb = unsafe { &(*words.as_ptr())[1] };
                    running.fetch_add(2, Relaxed);
                    s.spawn(move || {
                        let tid = tids.fetch_add(1, Relaxed);
                        let mut random = Random::new(stream);
                        while *written < bytes {
                            let n = (1 + random.below(900)).min((bytes - *written) as usize);
                            let data: Vec<u8> =
                                (0..n as u64).map(|i| byte(stream, *written + i)).collect();
                            // SAFETY: a vector of ours.
                            let n = unsafe { producer.write(data.as_ptr(), n) }.unwrap();
                            let _ = producer.publish();
                            *written += n as u64;
                            lanes.kick(lane);
                            if n == 0 {
                                poll(tid);
                            }
                        }
                        running.fetch_sub(1, Release);
                    });
                    s.spawn(move || {
                        let tid = tids.fetch_add(1, Relaxed);
                        let mut buffer = [0u8; 1000];
                        while *read < bytes {
                            // SAFETY: an array of ours.
                            let n = unsafe { consumer.read(buffer.as_mut_ptr(), buffer.len()) }
                                .unwrap();
                            for (i, got) in buffer[..n].iter().enumerate() {
                                assert_eq!(*got, byte(stream ^ 1, *read + i as u64));
                            }
                            let _ = consumer.publish();
                            *read += n as u64;
                            lanes.consumed(lane, inb.head.load(Relaxed));
                            if n == 0 {
                                poll(tid);
                            }
                        }
                        running.fetch_sub(1, Release);
                    });
                }
            }
            while running.load(Acquire) > 0 {
                std::thread::yield_now();
            }
            stop.store(true, Relaxed);
        });
        rig.drain();
        rig.check();
        rig.close();
    }
}

/// A thread that polls and comes again (a signal handler) is told so.
#[test]
fn a_poll_within_a_poll_is_told() {
    let mut rig = Rig::new(Order::Prompt, Model::ROCE, settings(true));
    rig.open(1);
    rig.ends[0].produce(0, 10);
    let hub = &rig.ends[1].hub;
    let mut seen = Vec::new();
    hub.poll(5, &mut |lanes, _| {
        seen.push(hub.poll(5, &mut |_, _| {}).unwrap_err());
        seen.push(hub.poll(6, &mut |_, _| {}).unwrap_err());
        assert_eq!(hub.take_back(6, lanes, 0).unwrap_err(), HubError::Busy);
        assert_eq!(lanes.kick(0), Kicked::Done);
    })
    .unwrap();
    assert_eq!(seen[..2], [PollError::Reentrant, PollError::Busy]);
    rig.close();
}
