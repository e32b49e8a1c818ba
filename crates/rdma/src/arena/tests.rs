use super::*;
use netacc_verbs::memory::{Model, Net, Order};
use std::format;
use std::vec;

#[test]
fn arenas_double_up_to_the_limit_and_rings_come_back() {
    let net = Net::new(Order::Prompt);
    let address = core::net::IpAddr::V4(core::net::Ipv4Addr::new(10, 0, 0, 1));
    let host = net.host(address, Model { registered_max: 5 << 20, ..Model::ROCE });
    let manager = host.open_manager().unwrap();
    let device = host.open_device(&manager, address, 0).unwrap();
    let domain = host.open_domain(&device).unwrap();
    let mut pool = Pool::new(100_000, 16384, 2 << 20);
    assert_eq!(pool.ring_bytes(), 131_072);
    assert!(pool.take().is_none());

    let mut memory = vec![];
    let mut sizes = vec![];
    let mut rings = vec![];
    loop {
        let bytes = pool.next_bytes();
        let mut block = vec![0u8; bytes].into_boxed_slice();
        let at = NonNull::new(block.as_mut_ptr()).unwrap();
        memory.push(block);
        // SAFETY: never touched, freed after the pool is closed.
        match unsafe { pool.grow(&host, &domain, at, bytes) } {
            Ok(()) => sizes.push(bytes),
            Err(e) => {
                // The limit of the device's stands for RLIMIT_MEMLOCK.
                let registered = sizes.iter().sum();
                assert_eq!(e, GrowError::Locked { bytes, registered });
                assert!(format!("{e}").contains("RLIMIT_MEMLOCK"), "{e}");
                break;
            }
        }
        while let Some(r) = pool.take() {
            rings.push(r);
        }
    }
    // At least one connection, doubled twice, and then always the limit.
    assert_eq!(sizes, [256 << 10, 512 << 10, 1 << 20, 2 << 20]);
    assert_eq!((pool.registered(), pool.regions()), (sizes.iter().sum(), 4));
    assert_eq!(rings.len(), 15);

    // No two rings share a byte, and all lie in the memory.
    let mut starts: vec::Vec<usize> =
        rings.iter().flat_map(|r| [r.outbound(), r.inbound()]).map(|p| p.as_ptr().addr()).collect();
    starts.sort_unstable();
    assert!(starts.windows(2).all(|w| w[1] - w[0] >= pool.ring_bytes()));

    let last = rings.pop().unwrap();
    let at = last.outbound();
    pool.give_back(last);
    assert_eq!(
        pool.take().map(|r| {
            let same = r.outbound() == at;
            pool.give_back(r);
            same
        }),
        Some(true)
    );
    rings.into_iter().for_each(|r| pool.give_back(r));
    let mut back = 0;
    pool.close(&host, |_, bytes| back += bytes);
    assert_eq!(back, sizes.iter().sum::<usize>());
    host.close_domain(domain).unwrap();
    host.close_device(device).unwrap();
    host.close_manager(manager).unwrap();
}

#[test]
fn a_device_that_refuses_is_not_mistaken_for_a_limit() {
    let net = Net::new(Order::Prompt);
    let address = core::net::IpAddr::V4(core::net::Ipv4Addr::new(10, 0, 0, 1));
    let host = net.host(address, Model::ROCE);
    let manager = host.open_manager().unwrap();
    let device = host.open_device(&manager, address, 0).unwrap();
    let domain = host.open_domain(&device).unwrap();
    let mut pool = Pool::<netacc_verbs::memory::Memory>::new(4096, 0, 0);
    net.fail_call(&host, netacc_verbs::fabric::Call::Register, 1, 5);
    let mut block = vec![0u8; 8192].into_boxed_slice();
    let at = NonNull::new(block.as_mut_ptr()).unwrap();
    // SAFETY: never touched.
    let refused = unsafe { pool.grow(&host, &domain, at, 8192) };
    assert!(matches!(refused, Err(GrowError::Refused(Error { errno: 5, .. }))));
    // SAFETY: as above.
    assert_eq!(unsafe { pool.grow(&host, &domain, at, 8191) }, Err(GrowError::TooSmall));
    assert!(pool.take().is_none());
}
