//! What is made of the libraries' answers, with devices that are tables of Rust functions: signs of
//! errors, half-posted lists, the C form of requests and completions.

use super::convert::*;
use super::*;
use crate::load::tests::STAND_IN;
use std::boxed::Box;
use std::cell::RefCell;
use std::mem::zeroed;
use std::vec::Vec;

/// `(wr_id, opcode, flags, segments, remote address, rkey, imm)`.
type Request = (u64, c_int, u32, Vec<(u64, u32, u32)>, u64, u32, u32);

/// What the stand-in for `post_send` and `post_recv` saw and answers.
#[derive(Default)]
struct Provider {
    /// In order of the list.
    seen: Vec<Request>,
    answer: c_int,
    /// Index of the request that `bad_wr` is set to; `usize::MAX`: to nothing.
    bad: Option<usize>,
    completions: Vec<ibv_wc>,
}

std::thread_local! {
    static PROVIDER: RefCell<Provider> = RefCell::default();
}

unsafe extern "C" fn post_send(
    _: *mut ibv_qp,
    mut wr: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    // What a real one does to errno on its way.
    // SAFETY: the thread's own.
    unsafe { *libc::__errno_location() = libc::ENOTTY };
    PROVIDER.with_borrow_mut(|p| {
        let mut index = 0;
        // SAFETY: a list that `post` has made.
        while let Some(w) = unsafe { wr.as_mut() } {
            let sges = match w.num_sge {
                0 => &[],
                // SAFETY: as many segments as it says.
                n => unsafe { core::slice::from_raw_parts(w.sg_list, n as usize) },
            };
            p.seen.push((
                w.wr_id,
                w.opcode,
                w.send_flags,
                sges.iter().map(|s| (s.addr, s.length, s.lkey)).collect(),
                w.wr.remote_addr,
                w.wr.rkey,
                w.imm_data,
            ));
            if p.bad == Some(index) {
                // SAFETY: the caller's place.
                unsafe { *bad = wr };
                break;
            }
            index += 1;
            wr = w.next;
        }
        p.answer
    })
}

unsafe extern "C" fn post_recv(
    _: *mut ibv_qp,
    mut wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    PROVIDER.with_borrow_mut(|p| {
        let mut index = 0;
        // SAFETY: a list that `post_receives` has made.
        while let Some(w) = unsafe { wr.as_mut() } {
            p.seen.push((w.wr_id, w.num_sge, 0, Vec::new(), 0, 0, 0));
            if p.bad == Some(index) {
                // SAFETY: the caller's place.
                unsafe { *bad = wr };
                break;
            }
            index += 1;
            wr = w.next;
        }
        p.answer
    })
}

unsafe extern "C" fn poll_cq(_: *mut ibv_cq, n: c_int, wc: *mut ibv_wc) -> c_int {
    PROVIDER.with_borrow_mut(|p| {
        if p.answer < 0 {
            return p.answer;
        }
        let count = p.completions.len().min(n as usize);
        for (i, c) in p.completions.drain(..count).enumerate() {
            // SAFETY: room for `n`.
            unsafe { wc.add(i).write(c) };
        }
        count as c_int
    })
}

unsafe extern "C" fn req_notify_cq(_: *mut ibv_cq, solicited: c_int) -> c_int {
    assert_eq!(solicited, 0);
    PROVIDER.with_borrow(|p| p.answer)
}

/// A pair, a queue and a region of 4096 bytes, which the libraries have not made.
struct Rig {
    verbs: Verbs,
    pair: Pair,
    queue: Queue,
    region: Region,
}

fn rig(inline_bytes: u32) -> Rig {
    // SAFETY: tables of optional functions and plain numbers.
    let (mut context, mut qp, mut cq, mut mr) = unsafe {
        (zeroed::<ibv_context>(), zeroed::<ibv_qp>(), zeroed::<ibv_cq>(), zeroed::<ibv_mr>())
    };
    context.ops.post_send = Some(post_send);
    context.ops.post_recv = Some(post_recv);
    context.ops.poll_cq = Some(poll_cq);
    context.ops.req_notify_cq = Some(req_notify_cq);
    let context: *mut ibv_context = Box::leak(Box::new(context));
    qp.context = context;
    cq.context = context;
    mr.addr = core::ptr::without_provenance_mut(0x10000);
    mr.length = 4096;
    mr.lkey = 77;
    PROVIDER.set(Provider::default());
    Rig {
        verbs: Verbs {
            api: Box::leak(Box::new(Api::load(&STAND_IN).ok().unwrap())),
            host: Host::PLAIN,
        },
        pair: Pair { id: NonNull::dangling(), qp: Box::leak(Box::new(qp)), inline_bytes },
        queue: Queue { channel: NonNull::dangling(), cq: NonNull::from(Box::leak(Box::new(cq))) },
        region: Region { mr: NonNull::from(Box::leak(Box::new(mr))) },
    }
}

impl Rig {
    fn piece(&self, offset: usize, bytes: usize) -> Piece<'_, Region> {
        Piece { region: &self.region, offset, bytes }
    }

    fn write(&self, id: u64) -> Work<'_, Region> {
        Work {
            id,
            action: Action::Write {
                from: Some(self.piece(16, 100)),
                to: Remote { address: 0xabcd, key: 9 },
                inline: false,
            },
            signaled: false,
        }
    }
}

#[test]
fn requests_have_the_form_that_c_expects() {
    let rig = rig(64);
    let to = Remote { address: 0x1_0000_0001, key: 0xfeed };
    let works = [
        rig.write(1),
        Work {
            id: 2,
            action: Action::WriteImm {
                from: Some(rig.piece(0, 64)),
                to,
                inline: true,
                imm: 0x0102_0304,
            },
            signaled: true,
        },
        Work {
            id: 3,
            action: Action::WriteImm { from: None, to, inline: false, imm: 0 },
            signaled: false,
        },
        Work { id: 4, action: Action::Send { from: rig.piece(4095, 1) }, signaled: false },
        Work { id: 5, action: Action::SendInline(b"hello"), signaled: true },
    ];
    rig.verbs.post(&rig.pair, &works).unwrap();
    let seen = PROVIDER.with_borrow(|p| p.seen.clone());
    let (signaled, inline) = (IBV_SEND_SIGNALED as u32, IBV_SEND_INLINE as u32);
    assert_eq!(
        seen[..4],
        [
            (1, IBV_WR_RDMA_WRITE, 0, [(0x10010, 100, 77)].into(), 0xabcd, 9, 0),
            (
                2,
                IBV_WR_RDMA_WRITE_WITH_IMM,
                signaled | inline,
                [(0x10000, 64, 77)].into(),
                to.address,
                0xfeed,
                u32::from_ne_bytes([1, 2, 3, 4])
            ),
            (3, IBV_WR_RDMA_WRITE_WITH_IMM, 0, [].into(), to.address, 0xfeed, 0),
            (4, IBV_WR_SEND, 0, [(0x10fff, 1, 77)].into(), 0, 0, 0),
        ]
    );
    assert_eq!(seen[4].0, 5);
    assert_eq!(seen[4].2, signaled | inline);
    assert_eq!(seen[4].3[0].1, 5);
}

#[test]
fn what_lies_outside_of_a_region_or_is_too_long_inline_is_not_posted() {
    let rig = rig(64);
    let to = Remote { address: 0, key: 0 };
    let write = |from, inline| Action::Write { from, to, inline };
    for action in [
        write(Some(rig.piece(0, 4097)), false),
        write(Some(rig.piece(4096, 1)), false),
        write(Some(rig.piece(usize::MAX, 2)), false),
        write(Some(rig.piece(0, 65)), true),
        Action::SendInline(&[0; 65]),
    ] {
        let works = [rig.write(1), Work { id: 2, action, signaled: false }];
        let error = rig.verbs.post(&rig.pair, &works).unwrap_err();
        assert_eq!((error.posted, error.errno, error.unknown), (0, libc::EINVAL, false));
    }
    let works = [rig.write(0); BATCH_MAX + 1];
    assert!(rig.verbs.post(&rig.pair, &works).is_err());
    assert!(PROVIDER.with_borrow(|p| p.seen.is_empty()), "something was posted");
    rig.verbs.post(&rig.pair, &works[..BATCH_MAX]).unwrap();
    assert_eq!(PROVIDER.with_borrow(|p| p.seen.len()), BATCH_MAX);
}

#[test]
fn errors_of_either_sign_say_how_many_were_posted() {
    let rig = rig(64);
    for (answer, errno) in [
        (libc::ENOMEM, libc::ENOMEM),
        (-libc::EINVAL, libc::EINVAL),
        // -1 means errno, which the stand-in has set.
        (-1, libc::ENOTTY),
    ] {
        PROVIDER.with_borrow_mut(|p| (p.answer, p.bad) = (answer, Some(2)));
        let error = rig.verbs.post(&rig.pair, &[rig.write(0); 4]).unwrap_err();
        assert_eq!((error.posted, error.errno, error.unknown), (2, errno, false));
        let receives = [Receive { id: 0, into: None }; 4];
        if answer != -1 {
            let error = rig.verbs.post_receives(&rig.pair, &receives).unwrap_err();
            assert_eq!((error.posted, error.errno, error.unknown), (2, errno, false));
        }
    }
}

#[test]
fn a_half_posted_list_is_noticed_even_when_the_provider_says_success() {
    // siw: the result of the doorbell replaces that of the list.
    let rig = rig(64);
    PROVIDER.with_borrow_mut(|p| p.bad = Some(1));
    let error = rig.verbs.post(&rig.pair, &[rig.write(0); 3]).unwrap_err();
    assert_eq!((error.posted, error.errno, error.unknown), (1, 0, false));
}

#[test]
fn a_failed_doorbell_leaves_it_unknown() {
    let rig = rig(64);
    PROVIDER.with_borrow_mut(|p| p.answer = libc::EIO);
    let error = rig.verbs.post(&rig.pair, &[rig.write(0); 3]).unwrap_err();
    assert_eq!((error.posted, error.errno, error.unknown), (0, libc::EIO, true));
}

#[test]
fn errno_is_the_applications() {
    let rig = rig(64);
    // SAFETY: the thread's own.
    unsafe { *libc::__errno_location() = 42 };
    rig.verbs.post(&rig.pair, &[rig.write(0)]).unwrap();
    assert_eq!(sys::errno(), 42);
    PROVIDER.with_borrow_mut(|p| p.answer = -1);
    assert!(rig.verbs.post(&rig.pair, &[rig.write(0)]).is_err());
    assert_eq!(sys::errno(), 42);
}

#[test]
fn completions_say_what_they_may() {
    let rig = rig(64);
    // SAFETY: numbers.
    let empty = unsafe { zeroed::<ibv_wc>() };
    let cases = [
        (IBV_WC_SUCCESS, 0, Outcome::Sent),
        (IBV_WC_SUCCESS, IBV_WC_RDMA_WRITE, Outcome::Written),
        (IBV_WC_SUCCESS, IBV_WC_RECV, Outcome::Received(33)),
        (IBV_WC_SUCCESS, IBV_WC_RECV_RDMA_WITH_IMM, Outcome::Announced(0x0102_0304)),
        // The operation of a failed one is rubbish.
        (IBV_WC_WR_FLUSH_ERR, IBV_WC_RECV, Outcome::Failed(Failure::Flushed)),
        (IBV_WC_REM_ACCESS_ERR, 99, Outcome::Failed(Failure::RemoteAccess)),
        (IBV_WC_RETRY_EXC_ERR, 0, Outcome::Failed(Failure::Unreachable)),
        (IBV_WC_RNR_RETRY_EXC_ERR, 0, Outcome::Failed(Failure::NotReady)),
        (77, 0, Outcome::Failed(Failure::Other(77))),
    ];
    // More than one batch, to see that they come whole and in order.
    let rounds = 4;
    for _ in 0..rounds {
        for (status, opcode, _) in cases {
            let mut wc = empty;
            wc.status = status;
            wc.opcode = opcode;
            wc.byte_len = 33;
            wc.imm_data = u32::from_ne_bytes([1, 2, 3, 4]);
            PROVIDER.with_borrow_mut(|p| {
                wc.wr_id = p.completions.len() as u64;
                p.completions.push(wc);
            });
        }
    }
    let mut out = [Completion::EMPTY; 64];
    assert_eq!(rig.verbs.poll(&rig.queue, &mut out), Ok(cases.len() * rounds));
    for (i, c) in out[..cases.len() * rounds].iter().enumerate() {
        assert_eq!(c.id, i as u64);
        assert_eq!(c.outcome, cases[i % cases.len()].2);
    }
    assert_eq!(rig.verbs.poll(&rig.queue, &mut out), Ok(0));
    PROVIDER.with_borrow_mut(|p| p.answer = -libc::EIO);
    let error = rig.verbs.poll(&rig.queue, &mut out).unwrap_err();
    assert_eq!((error.call, error.errno), (Call::Poll, libc::EIO));
    let error = rig.verbs.arm(&rig.queue).unwrap_err();
    assert_eq!((error.call, error.errno), (Call::Arm, libc::EIO));
}

#[test]
fn addresses_have_the_form_of_the_kernel() {
    let v4 = SockAddr::new("10.1.2.3:4660".parse().unwrap());
    // SAFETY: as it was made.
    let v4 = unsafe { v4.v4 };
    assert_eq!(v4.sin_family, libc::AF_INET as u16);
    assert_eq!(v4.sin_port.to_ne_bytes(), [0x12, 0x34]);
    assert_eq!(v4.sin_addr.s_addr.to_ne_bytes(), [10, 1, 2, 3]);
    let v6 = SockAddr::new("[fe80::5%3]:4660".parse().unwrap());
    // SAFETY: as it was made.
    let v6 = unsafe { v6.v6 };
    assert_eq!(v6.sin6_family, libc::AF_INET6 as u16);
    assert_eq!(v6.sin6_port.to_ne_bytes(), [0x12, 0x34]);
    assert_eq!((v6.sin6_addr.s6_addr[0], v6.sin6_addr.s6_addr[15]), (0xfe, 5));
    assert_eq!(v6.sin6_scope_id, 3);
}
