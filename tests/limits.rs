//! Cgroups with a limit on hugepages, on a captured host and on copies of it that change.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod captured;

use std::fs;

use captured::{Copied, figures, fixture, read, told};
use mrscope::host::{CgroupPages, Host, MemoryReader};

type Fault = fn(&Copied, &str);

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

fn of(cgroup: &str, page_bytes: u64) -> CgroupPages {
    CgroupPages { cgroup: cgroup.into(), page_bytes, ..CgroupPages::default() }
}

#[test]
fn cgroups_with_a_limit_show_what_they_hold() {
    let pod1 = "/kubepods.slice/kubepods-pod1.slice";
    let pod2 = "/kubepods.slice/kubepods-pod2.slice";
    let expected = [
        CgroupPages {
            usage_bytes: Some(48 * MIB),
            limit_bytes: Some(64 * MIB),
            reserved_bytes: Some(54 * MIB),
            failures: Some(9),
            ..of(pod1, 2 * MIB)
        },
        CgroupPages {
            usage_bytes: Some(2 * GIB),
            limit_bytes: Some(2 * GIB),
            reserved_bytes: Some(2 * GIB),
            reserved_limit_bytes: Some(2 * GIB),
            failures: Some(0),
            ..of(pod1, GIB)
        },
        CgroupPages {
            usage_bytes: Some(32 * MIB),
            limit_bytes: Some(32 * MIB),
            reserved_bytes: Some(32 * MIB),
            failures: Some(7),
            ..of(&format!("{pod1}/app"), 2 * MIB)
        },
        CgroupPages {
            usage_bytes: Some(0),
            limit_bytes: Some(0),
            reserved_bytes: Some(0),
            failures: Some(1),
            ..of(pod2, 2 * MIB)
        },
        CgroupPages {
            usage_bytes: Some(0),
            limit_bytes: Some(0),
            reserved_bytes: Some(0),
            failures: Some(0),
            ..of(pod2, GIB)
        },
        CgroupPages {
            usage_bytes: Some(10 * MIB),
            reserved_bytes: Some(12 * MIB),
            reserved_limit_bytes: Some(16 * MIB),
            failures: Some(2),
            ..of("/slurm/job_4711", 2 * MIB)
        },
    ];
    let memory = read(&fixture("limited_cgroups"));
    assert_eq!(memory.cgroups, expected);
    assert_eq!(memory.cgroups_omitted, Some(0));
}

/// As Kubernetes sets it on whoever asks for no hugepages.
#[test]
fn a_limit_of_zero_is_shown_once_it_refused_something() {
    let host = Copied::of("limited_cgroups", "zero");
    let pod2 = "kubepods.slice/kubepods-pod2.slice";
    let shown = |host: &Copied| {
        let memory = host.read();
        assert_eq!(memory.cgroups_omitted, Some(0));
        memory.cgroups.iter().any(|it| it.cgroup == format!("/{pod2}"))
    };
    assert!(shown(&host));
    let events = format!("sys/fs/cgroup/{pod2}/hugetlb.2MB.events");
    host.write(&events, "max 0\n");
    assert!(!shown(&host));
    let held = format!("sys/fs/cgroup/{pod2}/hugetlb.1GB.current");
    host.write(&held, "1073741824\n");
    assert!(shown(&host));
}

#[test]
fn cgroups_that_come_and_go_are_no_trouble() {
    let host = Copied::of("limited_cgroups", "gone");
    let mut reader = MemoryReader::new(Host::at(&host.0));
    assert_eq!(reader.read().cgroups.len(), 6);
    fs::remove_dir_all(host.at("sys/fs/cgroup/slurm/job_4711")).unwrap();
    let memory = reader.read();
    assert_eq!(memory.cgroups.len(), 5);
    assert_eq!(told(&memory, &host.0), Vec::<String>::new());
    // A limit that is taken away is gone at once; the other size's stays.
    host.write("sys/fs/cgroup/kubepods.slice/kubepods-pod2.slice/hugetlb.1GB.max", "max\n");
    assert_eq!(reader.read().cgroups.len(), 4);
}

#[test]
fn a_cgroup_s_wrong_file_hides_no_other() {
    let pod1 = "sys/fs/cgroup/kubepods.slice/kubepods-pod1.slice";
    let whole = figures(&read(&fixture("limited_cgroups")));
    let faults: [(&str, Fault, usize, &str, &str); 4] = [
        (
            "events",
            |host, pod| host.write(&format!("{pod}/hugetlb.2MB.events"), "min 1\n"),
            1,
            "hugetlb.2MB.events",
            "expected a line \"max COUNT\"",
        ),
        (
            "current",
            |host, pod| host.break_file(&format!("{pod}/hugetlb.1GB.current")),
            1,
            "hugetlb.1GB.current",
            "Is a directory (os error 21)",
        ),
        (
            "max",
            |host, pod| host.write(&format!("{pod}/hugetlb.2MB.max"), "lots\n"),
            1,
            "hugetlb.2MB.max",
            "expected a number, or max",
        ),
        // Five figures of the container below.
        (
            "control",
            |host, pod| host.break_file(&format!("{pod}/cgroup.subtree_control")),
            4,
            "cgroup.subtree_control",
            "Is a directory (os error 21)",
        ),
    ];
    for (name, fault, lost, file, said) in faults {
        let host = Copied::of("limited_cgroups", &format!("wrong-{name}"));
        fault(&host, pod1);
        let mut reader = MemoryReader::new(Host::at(&host.0));
        // It is told as long as it lasts, searched or not.
        for _ in 0..2 {
            let memory = reader.read();
            assert_eq!(told(&memory, &host.0), [format!("{pod1}/{file}: {said}")], "{name}");
            assert_eq!(figures(&memory), whole - lost, "{name}");
        }
    }
}

#[test]
fn cgroups_beyond_two_hundred_are_counted_and_the_largest_shown() {
    let host = Copied::of("limited_cgroups", "many");
    fs::remove_dir_all(host.at("sys/fs/cgroup/kubepods.slice")).unwrap();
    for job in 0..250_u64 {
        let at = format!("sys/fs/cgroup/slurm/job_{job}/hugetlb.2MB");
        host.write(&format!("{at}.max"), "1073741824\n");
        host.write(&format!("{at}.current"), &format!("{}\n", job * 2 * MIB));
    }
    let memory = host.read();
    assert_eq!(told(&memory, &host.0), Vec::<String>::new());
    assert_eq!(memory.cgroups.len(), 200);
    // job_4711 of the captured host has 10 MiB: it is not among them either.
    assert_eq!(memory.cgroups_omitted, Some(51));
    let least = memory.cgroups.iter().map(|it| it.usage_bytes.unwrap()).min();
    assert_eq!(least, Some(50 * 2 * MIB));
}

#[test]
fn without_the_controller_or_the_unified_hierarchy_no_cgroup_is_looked_at() {
    let host = Copied::of("limited_cgroups", "without");
    host.write("sys/fs/cgroup/cgroup.controllers", "cpuset cpu io memory pids\n");
    let memory = host.read();
    assert_eq!((memory.cgroups.len(), memory.cgroups_omitted), (0, None));
    fs::remove_file(host.at("sys/fs/cgroup/cgroup.controllers")).unwrap();
    let memory = host.read();
    assert_eq!((memory.cgroups.len(), memory.cgroups_omitted), (0, None));
    assert_eq!(told(&memory, &host.0), Vec::<String>::new());
}
