//! RDMA netlink: what real kernels answered is read as iproute2 read it, and whatever else comes
//! neither panics nor grows.
#![allow(clippy::unwrap_used)]

#[path = "lab/rdma.rs"]
mod rdma;

use std::path::{Path, PathBuf};

use mrscope::host::{Host, device_names};
use mrscope::model::{CqEntry, Creator, CtxEntry, DeviceId, MrEntry, Odp, PdEntry, QpEntry};
use mrscope::nldev::dump::{Answer, Step};
use mrscope::nldev::entries::{self, Entry, attribute as a};
use mrscope::nldev::wire::{attributes, messages};
use mrscope::nldev::{Budget, Command, End, Netlink, NldevError, Question};
use proptest::prelude::*;
use proptest::sample::{Index, select};
use serde_json::Value;

const KERNELS: [&str; 3] = ["5.10", "6.1", "7.3"];

fn file(kernel: &str, name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/nldev").join(kernel).join(name)
}

/// The datagrams of an answer, as they came.
fn captured(kernel: &str, name: &str) -> Vec<Vec<u8>> {
    let bytes = std::fs::read(file(kernel, name)).unwrap();
    let mut rest = bytes.as_slice();
    let mut datagrams = Vec::new();
    while let Some((length, behind)) = rest.split_first_chunk() {
        let (datagram, next) = behind.split_at(u32::from_le_bytes(*length) as usize);
        datagrams.push(datagram.to_vec());
        rest = next;
    }
    assert!(rest.is_empty() && !datagrams.is_empty());
    datagrams
}

fn said(kernel: &str, name: &str) -> Value {
    serde_json::from_slice(&std::fs::read(file(kernel, &format!("{name}.json"))).unwrap()).unwrap()
}

/// The payloads of an answer that came whole.
fn payloads(command: Command, datagrams: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let first = messages(&datagrams[0]).next().unwrap().unwrap();
    let mut answer = Answer::to(question(command), first.sequence);
    let mut all = Vec::new();
    let mut step = Step::More;
    for datagram in datagrams {
        assert_eq!(step, Step::More);
        let taken = answer.take(datagram, |payload| {
            all.push(payload.to_vec());
            Ok(())
        });
        step = taken.unwrap();
    }
    assert_eq!(step, Step::Whole);
    all
}

fn question(command: Command) -> Question {
    Question { command, device: None, mrn: None }
}

fn table<T: Entry>(kernel: &str, name: &str, command: Command) -> Vec<T> {
    let mut all = Vec::new();
    for payload in payloads(command, &captured(kernel, name)) {
        entries::entries(&payload, &mut all).unwrap();
    }
    all
}

#[test]
fn entries_of_real_kernels_are_what_iproute2_read() {
    for kernel in KERNELS {
        let mrs: Vec<MrEntry> = table(kernel, "mr", Command::MemoryRegions);
        assert_eq!(mrs, rdma::rows(&said(kernel, "mr"), rdma::mr).unwrap(), "{kernel}");
        let gone = mrs.iter().filter(|mr| mr.creator == Creator::Gone).count();
        assert_eq!((mrs.len(), gone), (46, 2), "{kernel}");

        let pds: Vec<PdEntry> = table(kernel, "pd", Command::ProtectionDomains);
        assert_eq!(pds, rdma::rows(&said(kernel, "pd"), rdma::pd).unwrap(), "{kernel}");
        assert_eq!(pds[0].creator, Creator::Kernel("ib_core".to_owned()), "{kernel}");

        let cqs: Vec<CqEntry> = table(kernel, "cq", Command::CompletionQueues);
        assert_eq!(cqs, rdma::rows(&said(kernel, "cq"), rdma::cq).unwrap(), "{kernel}");
        assert_eq!(cqs.len(), 2, "{kernel}");

        let qps: Vec<QpEntry> = table(kernel, "qp", Command::QueuePairs);
        assert_eq!(qps, rdma::rows(&said(kernel, "qp"), rdma::qp).unwrap(), "{kernel}");
        assert_eq!(qps.len(), 2, "{kernel}");
    }
    for kernel in ["6.1", "7.3"] {
        let contexts: Vec<CtxEntry> = table(kernel, "ctx", Command::Contexts);
        assert_eq!(contexts, rdma::rows(&said(kernel, "ctx"), rdma::ctx).unwrap(), "{kernel}");
        assert_eq!(contexts.len(), 3, "{kernel}");
    }
}

#[test]
fn devices_and_counts_of_real_kernels_are_what_iproute2_read() {
    for kernel in KERNELS {
        let devices = payloads(Command::Devices, &captured(kernel, "dev"));
        let devices: Vec<_> = devices.iter().map(|it| entries::device(it).unwrap()).collect();
        assert_eq!(devices, [DeviceId { index: 0, name: "rxe0".to_owned() }], "{kernel}");

        let counts = payloads(Command::Resources, &captured(kernel, "resources"));
        let counts = counts.iter().map(|it| entries::resources(it).unwrap());
        let counts: Vec<_> = counts.map(rdma::comparable).collect();
        let said = rdma::rows(&said(kernel, "resources"), rdma::resources).unwrap();
        let said: Vec<_> = said.into_iter().map(rdma::comparable).collect();
        assert_eq!(counts, said, "{kernel}");
        assert_eq!(counts[0].in_use("mr"), Some(46), "{kernel}");
    }
}

#[test]
fn maxima_are_told_by_kernels_that_have_them() {
    let maxima = |kernel| {
        let message = payloads(Command::Resources, &captured(kernel, "resources")).remove(0);
        let counts = entries::resources(&message).unwrap().counts.into_iter();
        counts.filter_map(|it| Some((it.kind, it.maximum?))).collect::<Vec<_>>()
    };
    assert_eq!((maxima("5.10"), maxima("6.1")), (Vec::new(), Vec::new()));
    // Soft RoCE's. A case of the lab holds them against those of libibverbs.
    let expected = [
        ("pd", 0x10_0000),
        ("cq", 0x10_0000),
        ("qp", 0xf_fff0),
        ("mr", 0x7_ffff),
        ("srq", 0xd_ffff),
    ];
    assert_eq!(maxima("7.3"), expected.map(|(kind, most)| (kind.to_owned(), most)));
}

#[test]
fn this_machine_s_own_devices_are_those_of_sysfs() {
    let named = device_names(&Host::live()).unwrap();
    match Netlink::open(&Host::live()).unwrap() {
        Some(mut netlink) => {
            let devices = netlink.devices(&Budget::default()).unwrap();
            assert_eq!(devices.end, End::Whole);
            let mut names: Vec<_> = devices.entries.into_iter().map(|it| it.name).collect();
            names.sort();
            assert_eq!(names, named);
        }
        None => assert_eq!(named, Vec::<String>::new()),
    }
}

/// What an entry of the test's own is on the wire.
fn nest(kind: u16, payload: &[u8]) -> Vec<u8> {
    let mut bytes = (4 + payload.len() as u16).to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(payload);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

fn text(kind: u16, text: &str) -> Vec<u8> {
    nest(kind, &[text.as_bytes(), b"\0"].concat())
}

/// The attributes of an MR, each on its own.
fn parts(mr: &MrEntry) -> Vec<Vec<u8>> {
    let word = |kind, value: u32| nest(kind, &value.to_ne_bytes());
    let mut parts = vec![word(a::RES_MRN, mr.mrn)];
    parts.extend(mr.pdn.map(|pdn| word(a::RES_PDN, pdn)));
    parts.extend(mr.rkey.map(|key| word(a::RES_RKEY, key)));
    parts.extend(mr.lkey.map(|key| word(a::RES_LKEY, key)));
    parts.push(nest(a::RES_MRLEN, &mr.length.unwrap_or(u64::MAX).to_ne_bytes()));
    parts.extend(match &mr.creator {
        Creator::Thread(tid) => Some(word(a::RES_PID, *tid)),
        Creator::Kernel(name) => Some(text(a::RES_KERN_NAME, name)),
        Creator::Gone => None,
    });
    parts.extend(mr.odp.map(|odp| {
        let how = if odp == Odp::Explicit { "explicit" } else { "implicit" };
        let pair = [text(a::DRIVER_STRING, "odp"), text(a::DRIVER_STRING, how)];
        nest(a::DRIVER, &pair.concat())
    }));
    parts
}

fn any_mr() -> impl Strategy<Value = MrEntry> {
    let creator = prop_oneof![
        (1_u32..).prop_map(Creator::Thread),
        "[a-z_]{1,15}".prop_map(Creator::Kernel),
        Just(Creator::Gone),
    ];
    let odp = prop_oneof![Just(None), Just(Some(Odp::Explicit)), Just(Some(Odp::Implicit))];
    let keys = (any::<Option<u32>>(), any::<Option<u32>>());
    (any::<u32>(), any::<Option<u32>>(), prop::option::of(0..u64::MAX), keys, odp, creator)
        .prop_map(|(mrn, pdn, length, (rkey, lkey), odp, creator)| MrEntry {
            mrn,
            pdn,
            length,
            rkey,
            lkey,
            odp,
            creator,
        })
}

#[test]
fn a_thread_that_is_told_as_0_is_gone() {
    let mr = |pid: u32| {
        let parts = [
            nest(a::RES_MRN, &[1, 0, 0, 0]),
            nest(a::RES_MRLEN, &[0; 8]),
            nest(a::RES_PID, &pid.to_ne_bytes()),
        ];
        let mut read: Vec<MrEntry> = Vec::new();
        let table = nest(a::RES_MR, &nest(a::RES_MR_ENTRY, &parts.concat()));
        entries::entries(&table, &mut read).unwrap();
        read.remove(0).creator
    };
    assert_eq!((mr(0), mr(7)), (Creator::Gone, Creator::Thread(7)));
}

/// The kernel's own contexts have a place in the list, and nothing in it.
#[test]
fn an_entry_without_anything_is_passed_over() {
    let context = nest(a::RES_CTXN, &[3, 0, 0, 0]);
    let entries = [nest(a::RES_CTX_ENTRY, &[]), nest(a::RES_CTX_ENTRY, &context)];
    let mut read: Vec<CtxEntry> = Vec::new();
    entries::entries(&nest(a::RES_CTX, &entries.concat()), &mut read).unwrap();
    assert_eq!(read, [CtxEntry { ctxn: 3, creator: Creator::Gone }]);
}

/// Of all files of all kernels, one datagram.
fn any_datagram() -> impl Strategy<Value = Vec<u8>> {
    let names = ["dev", "resources", "mr", "pd", "cq", "qp", "ctx"];
    let all: Vec<_> = KERNELS
        .into_iter()
        .flat_map(|kernel| names.map(|name| (kernel, name)))
        .filter(|(kernel, name)| file(kernel, name).exists())
        .flat_map(|(kernel, name)| captured(kernel, name))
        .collect();
    select(all)
}

/// Attributes in attributes, of kinds that are known and others, with lengths that may be wrong.
fn garbage() -> impl Strategy<Value = Vec<u8>> {
    let kind = prop_oneof![0_u16..130, any::<u16>()];
    let leaf = (kind, prop::collection::vec(any::<u8>(), 0..20))
        .prop_map(|(kind, payload)| nest(kind, &payload));
    let tables = [
        a::RES_MR,
        a::RES_MR_ENTRY,
        a::RES_PD,
        a::RES_PD_ENTRY,
        a::RES_SUMMARY,
        a::DRIVER,
        a::RES_SUMMARY_ENTRY,
        a::RES_QP,
        a::RES_QP_ENTRY,
        a::RES_CTX,
        a::RES_CTX_ENTRY,
    ];
    leaf.prop_recursive(6, 100, 8, move |inner| {
        (
            select(tables.to_vec()),
            prop::collection::vec(inner, 0..8),
            prop::option::of(any::<u16>()),
        )
            .prop_map(|(kind, inner, length)| {
                let mut bytes = nest(kind, &inner.concat());
                if let Some(length) = length {
                    bytes[..2].copy_from_slice(&length.to_ne_bytes());
                }
                bytes
            })
    })
}

/// Reads the payload as everything that there is; nothing that comes of it is larger than it.
fn read_as_all(payload: &[u8]) {
    fn read<T: Entry>(payload: &[u8]) {
        let mut all = Vec::<T>::new();
        let _ = entries::entries(payload, &mut all);
        // A header, and a number with its own.
        assert!(all.len() * 12 <= payload.len());
    }
    read::<MrEntry>(payload);
    read::<PdEntry>(payload);
    read::<CtxEntry>(payload);
    read::<CqEntry>(payload);
    read::<QpEntry>(payload);
    // A byte that is no UTF-8 becomes three.
    let most = 3 * payload.len();
    let _ = entries::device(payload).inspect(|device| assert!(device.name.len() <= most));
    let _ = entries::resources(payload).inspect(|it| {
        let names: usize = it.counts.iter().map(|count| count.kind.len()).sum();
        assert!(names <= most && it.counts.len() * 20 <= payload.len());
    });
    assert!(attributes(payload).count() <= payload.len() / 4 + 1);
}

fn read_datagram(datagram: &[u8]) {
    let commands = [
        Command::Devices,
        Command::Resources,
        Command::MemoryRegions,
        Command::ProtectionDomains,
        Command::Contexts,
        Command::CompletionQueues,
        Command::QueuePairs,
    ];
    assert!(messages(datagram).count() <= datagram.len() / 16 + 1);
    let sequence = messages(datagram).find_map(|it| Some(it.ok()?.sequence)).unwrap_or_default();
    for command in commands {
        let mut bytes = 0;
        let step = Answer::to(question(command), sequence).take(datagram, |payload| {
            bytes += payload.len();
            read_as_all(payload);
            Ok(())
        });
        assert!(bytes <= datagram.len());
        if let Err(error) = step {
            let short = error.to_string().len() < 200;
            assert!(short && !matches!(error, NldevError::Socket { .. }));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn what_was_cut_off_is_read_or_refused(datagram in any_datagram(), at in any::<Index>()) {
        read_datagram(&datagram[..at.index(datagram.len() + 1)]);
    }

    #[test]
    fn what_was_damaged_is_read_or_refused(
        datagram in any_datagram(),
        flips in prop::collection::vec((any::<Index>(), any::<u8>()), 1..6),
    ) {
        let mut datagram = datagram;
        for (at, bits) in flips {
            let at = at.index(datagram.len());
            datagram[at] ^= bits;
        }
        read_datagram(&datagram);
    }

    #[test]
    fn lengths_that_are_not_so_are_read_or_refused(
        datagram in any_datagram(), at in any::<Index>(), length in any::<u16>(),
    ) {
        let mut datagram = datagram;
        let at = at.index(datagram.len() / 4) * 4;
        datagram[at..at + 2].copy_from_slice(&length.to_ne_bytes());
        read_datagram(&datagram);
    }

    #[test]
    fn what_netlink_never_sends_is_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        read_datagram(&bytes);
        read_as_all(&bytes);
    }

    #[test]
    fn attributes_in_attributes_are_read_or_refused(bytes in garbage()) {
        read_as_all(&bytes);
    }

    #[test]
    fn attributes_that_are_unknown_change_nothing(
        mrs in prop::collection::vec(any_mr(), 0..20),
        unknown in prop::collection::vec((119_u16..0x3fff, "[a-z]{0,9}"), 1..5),
        at in any::<Index>(),
    ) {
        let strange: Vec<u8> =
            unknown.iter().flat_map(|(kind, payload)| nest(*kind, payload.as_bytes())).collect();
        let entry = |mr: &MrEntry| {
            let mut parts = parts(mr);
            parts.insert(at.index(parts.len() + 1), strange.clone());
            nest(a::RES_MR_ENTRY, &parts.concat())
        };
        let mut inside: Vec<_> = mrs.iter().map(entry).collect();
        inside.insert(at.index(inside.len() + 1), strange.clone());
        let table = nest(a::RES_MR, &inside.concat());
        let mut read: Vec<MrEntry> = Vec::new();
        entries::entries(&[strange.clone(), table, strange].concat(), &mut read).unwrap();
        prop_assert_eq!(read, mrs);
    }

    #[test]
    fn what_an_entry_lacks_is_named(mr in any_mr()) {
        let without: Vec<u8> = parts(&mr).split_off(1).concat();
        let table = nest(a::RES_MR, &nest(a::RES_MR_ENTRY, &without));
        let error = entries::entries::<MrEntry>(&table, &mut Vec::new()).unwrap_err();
        prop_assert_eq!(error.to_string(), "an MR has no attribute 62 (number)");
    }
}
