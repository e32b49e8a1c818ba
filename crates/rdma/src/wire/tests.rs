use super::*;
use std::vec::Vec;

fn items() -> Vec<Item> {
    let ring = Ring { address: 0x1122_3344_5566_7788, key: 0x99aa_bbcc, log2: 17 };
    std::vec![
        Item::Open { ring, token: u64::MAX - 2 },
        Item::Close,
        Item::Data { rebased: true, bytes: 0x0001_0203, tail: u64::MAX },
        Item::Data { rebased: false, bytes: 1, tail: 1 },
        Item::Credit { head: 5 },
    ]
}

#[test]
fn what_is_written_is_read() {
    for a in items() {
        for b in items() {
            let mut draft = Draft::new();
            assert!(draft.push(4095, a));
            let both = draft.push(1, b);
            assert_eq!(both, a.units() + b.units() <= UNITS_MAX);
            let bytes = draft.finish(0xdead_beef).to_vec();
            assert!(bytes.len() <= MESSAGE_BYTES);
            let (mut message, returned) = Message::read(&bytes).unwrap();
            assert_eq!(returned, 0xdead_beef);
            assert_eq!(message.next(), Some(Some((4095, a))));
            assert_eq!(message.next(), both.then_some(Some((1, b))));
            // Cut off anywhere, or longer: no message.
            for len in (0..bytes.len()).chain([bytes.len() + 1]) {
                let mut other = bytes.clone();
                other.resize(len, 0);
                assert!(Message::read(&other).is_none());
            }
        }
    }
}

#[test]
fn the_bytes_are_these() {
    let mut draft = Draft::new();
    assert!(
        draft.push(0x0abc, Item::Data { rebased: true, bytes: 0x0000_0200, tail: 0x1_0000_0200 })
    );
    let expected = [
        1, 2, 0, 0, 9, 0, 0, 0, // header: one unit, version 2, nine returned
        0xbc, 0x0a, 3, 1, 0, 2, 0, 0, // lane, kind, rebased, bytes
        0, 2, 0, 0, 1, 0, 0, 0, // tail
    ];
    assert_eq!(draft.finish(9), expected);
    let short =
        Imm { lane: 0xabc, rebased: true, mark: false, reached: true, returned: 5, bytes: 512 };
    let long =
        Imm { lane: 0xabc, rebased: false, mark: true, reached: false, returned: 1, bytes: 4097 };
    for (imm, bits) in [(short, 0xabc5_51ff), (long, 0xabca_9000)] {
        assert_eq!(imm.encode(), bits);
        assert_eq!(Imm::decode(bits), imm);
    }
}

#[test]
fn every_immediate_means_something_and_comes_back() {
    for slot in [0u32, 1, 0x800, 0xfff] {
        for low in 0..1u32 << 20 {
            let imm = slot << 20 | low;
            let read = Imm::decode(imm);
            assert_eq!(u32::from(read.lane), slot);
            assert!((1..=IMM_BYTES_MAX).contains(&read.bytes));
            // The long form of a small number gives back what the short one can, too.
            assert!(read.returned <= Imm::returned_max(read.bytes));
            assert_eq!(Imm::decode(read.encode()), read);
            if imm >> 19 & 1 == 0 || read.bytes > 4096 {
                assert_eq!(read.encode(), imm);
            }
        }
    }
}

#[test]
fn what_an_immediate_can_say_it_says() {
    for bytes in [1, 512, 4095, 4096, 4097, 16384, IMM_BYTES_MAX] {
        let returned = Imm::returned_max(bytes);
        assert_eq!(returned, if bytes <= 4096 { 15 } else { 1 });
        for flags in 0..8u32 {
            let [rebased, mark, reached] = [1, 2, 4].map(|bit| flags & bit != 0);
            let imm = Imm { lane: 4095, rebased, mark, reached, returned, bytes };
            assert_eq!(Imm::decode(imm.encode()), imm);
        }
    }
}

#[test]
fn any_bytes_are_read_to_an_end() {
    let mut x = 1u64;
    for _ in 0..if cfg!(miri) { 200 } else { 50_000 } {
        let mut bytes = [0u8; MESSAGE_BYTES];
        for b in &mut bytes {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            *b = (x >> 56) as u8;
        }
        // Mostly a good header, so that items are looked at.
        let units = bytes[0] % 5;
        if x >> 40 & 7 != 0 {
            bytes[..4].copy_from_slice(&[units, VERSION, 0, 0]);
        }
        for len in [8 + 16 * usize::from(units), 64, 0] {
            let Some((mut message, _)) = Message::read(&bytes[..len.min(64)]) else { continue };
            let mut count = 0;
            while message.next().is_some() {
                count += 1;
            }
            assert!(count <= UNITS_MAX);
        }
    }
}

#[test]
fn every_header_at_every_length_is_a_message_or_none() {
    let mut bytes = [0u8; MESSAGE_BYTES + UNIT];
    for len in 0..=bytes.len() {
        for units in [0, 1, 2, 3, 4, 5, 127, 128, 255] {
            for version in 0..=255u8 {
                for zeros in [[0, 0], [1, 0], [0, 1], [0, 0x80], [0xff, 0xff]] {
                    let header = [units, version, zeros[0], zeros[1]];
                    bytes[..4].copy_from_slice(&header);
                    let fits = usize::from(units) <= UNITS_MAX
                        && len == HEADER + usize::from(units) * UNIT;
                    let expected = fits && version == VERSION && zeros == [0, 0];
                    let read = Message::read(&bytes[..len]);
                    assert_eq!(read.is_some(), expected, "{header:x?}, {len} bytes");
                }
            }
        }
    }
}

/// Of three units: what each kind takes of them, and what is left is looked at, too.
#[test]
fn every_kind_of_every_unit_is_an_item_or_ends_the_message() {
    for kinds in (0..7u16.pow(3)).map(|n| [n % 7, n / 7 % 7, n / 49]) {
        // Those that there are, their neighbours, and the last of all.
        let kinds = kinds.map(|kind| if kind == 6 { 255 } else { kind as u8 });
        for small in 0..=255u8 {
            let mut bytes = [0u8; HEADER + UNITS_MAX * UNIT];
            bytes[..2].copy_from_slice(&[UNITS_MAX as u8, VERSION]);
            for (unit, kind) in kinds.iter().enumerate() {
                let at = HEADER + unit * UNIT;
                bytes[at..at + 4].copy_from_slice(&[unit as u8, 0, *kind, small]);
            }
            let (mut message, _) = Message::read(&bytes).unwrap();
            let mut unit = 0;
            while unit < UNITS_MAX {
                let kind = kinds[unit];
                let units = if kind == kind::OPEN { 2 } else { 1 };
                let known = (1..=4).contains(&kind) && unit + units <= UNITS_MAX;
                let item = message.next().unwrap();
                assert_eq!(item.map(|(slot, _)| slot), known.then_some(unit as u16), "{kinds:?}");
                unit = if known { unit + units } else { UNITS_MAX };
            }
            assert_eq!(message.next(), None);
        }
    }
}
