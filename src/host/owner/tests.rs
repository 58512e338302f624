//! What /proc/PID/cgroup looks like, by who made the cgroup, and whose it is.

use super::super::cgroup::Cgroups;
use super::Owner;

/// A container, and another that it is in, or that is beside it.
const ID: &str = "3f4e8a9b0c1d2e3f4a5b6c7d8e9f0a1b2c3d4e5f60718293a4b5c6d7e8f90a1b";
const OUTER: &str = "9a0b1c2d3e4f5061728394a5b6c7d8e9fa0b1c2d3e4f5a6b7c8d9e0f1a2b3c4d";
const UID: &str = "0f6c7a5e-1b2c-4d3e-8f90-a1b2c3d4e5f6";
/// Of a pod that the kubelet read from a file.
const STATIC: &str = "c4ca4238a0b923820dcc509a6f75849b";

/// Who made it, the file, and what it says: container, pod, job, step, unit. `ID`, `OUTER`, `UID`,
/// `U_I_D` (with underscores) and `STATIC` stand for the constants.
type Row = (&'static str, &'static str, [&'static str; 5]);

const PODS: &[Row] = &[
    // v2, driver systemd
    (
        "k8s containerd systemd guaranteed",
        "0::/kubepods.slice/kubepods-podU_I_D.slice/cri-containerd-ID.scope",
        ["ID", "UID", "", "", "cri-containerd-ID.scope"],
    ),
    (
        "k8s containerd systemd burstable",
        "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podU_I_D.slice/cri-containerd-ID.scope",
        ["ID", "UID", "", "", "cri-containerd-ID.scope"],
    ),
    (
        "k8s containerd systemd besteffort",
        "0::/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-podU_I_D.slice/cri-containerd-ID.scope",
        ["ID", "UID", "", "", "cri-containerd-ID.scope"],
    ),
    (
        "k8s crio systemd burstable",
        "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podU_I_D.slice/crio-ID.scope",
        ["ID", "UID", "", "", "crio-ID.scope"],
    ),
    (
        "k8s crio crun systemd guaranteed",
        "0::/kubepods.slice/kubepods-podU_I_D.slice/crio-ID.scope/container",
        ["ID", "UID", "", "", "crio-ID.scope"],
    ),
    (
        "k8s crio conmon",
        "0::/kubepods.slice/kubepods-podU_I_D.slice/crio-conmon-ID.scope",
        ["", "UID", "", "", "crio-conmon-ID.scope"],
    ),
    (
        "k8s docker systemd besteffort",
        "0::/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-podU_I_D.slice/docker-ID.scope",
        ["ID", "UID", "", "", "docker-ID.scope"],
    ),
    (
        "k8s static systemd burstable",
        "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podSTATIC.slice/cri-containerd-ID.scope",
        ["ID", "STATIC", "", "", "cri-containerd-ID.scope"],
    ),
    (
        "kind systemd burstable",
        "0::/system.slice/docker-OUTER.scope/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice/kubelet-kubepods-burstable-podU_I_D.slice/cri-containerd-ID.scope",
        ["ID", "UID", "", "", "cri-containerd-ID.scope"],
    ),
    (
        "k8s systemd in a container",
        "0::/kubepods.slice/kubepods-podU_I_D.slice/cri-containerd-ID.scope/system.slice/trainer.service",
        ["ID", "UID", "", "", "trainer.service"],
    ),
    // v2, driver cgroupfs
    ("k8s cgroupfs guaranteed", "0::/kubepods/podUID/ID", ["ID", "UID", "", "", ""]),
    ("k8s cgroupfs burstable", "0::/kubepods/burstable/podUID/ID", ["ID", "UID", "", "", ""]),
    ("k8s cgroupfs besteffort", "0::/kubepods/besteffort/podUID/ID", ["ID", "UID", "", "", ""]),
    ("k8s static cgroupfs", "0::/kubepods/burstable/podSTATIC/ID", ["ID", "STATIC", "", "", ""]),
    ("k8s crio cgroupfs", "0::/kubepods/burstable/podUID/crio-ID", ["ID", "UID", "", "", ""]),
    ("k8s crio conmon cgroupfs", "0::/kubepods/podUID/crio-conmon-ID", ["", "UID", "", "", ""]),
    (
        "kind cgroupfs",
        "0::/docker/OUTER/kubelet/kubepods/besteffort/podUID/ID",
        ["ID", "UID", "", "", ""],
    ),
    // Two drivers that differ
    (
        "k8s systemd, containerd cgroupfs",
        "0::/system.slice/containerd.service/kubepods-burstable-podU_I_D.slice:cri-containerd:ID",
        ["ID", "UID", "", "", "containerd.service"],
    ),
    (
        "k8s systemd, containerd cgroupfs, of its root",
        "0::/kubepods-besteffort-podU_I_D.slice:cri-containerd:ID",
        ["ID", "UID", "", "", ""],
    ),
    // v1 and hybrid
    (
        "k8s v1 cgroupfs burstable",
        "11:memory:/kubepods/burstable/podUID/ID\n4:cpu,cpuacct:/kubepods/burstable/podUID/ID\n1:name=systemd:/kubepods/burstable/podUID/ID",
        ["ID", "UID", "", "", ""],
    ),
    (
        "k8s v1 systemd guaranteed",
        "9:hugetlb:/kubepods.slice/kubepods-podU_I_D.slice/docker-ID.scope\n1:name=systemd:/kubepods.slice/kubepods-podU_I_D.slice/docker-ID.scope",
        ["ID", "UID", "", "", "docker-ID.scope"],
    ),
    (
        "k8s hybrid systemd besteffort",
        "3:cpuset:/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-podU_I_D.slice/crio-ID.scope\n1:name=systemd:/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-podU_I_D.slice/crio-ID.scope\n0::/system.slice/crio.service",
        ["ID", "UID", "", "", "crio-ID.scope"],
    ),
    // From within a cgroup namespace the beginning is not told
    (
        "k8s of a neighbour pod's",
        "0::/../../kubepods-burstable-podU_I_D.slice/cri-containerd-ID.scope",
        ["ID", "UID", "", "", "cri-containerd-ID.scope"],
    ),
    (
        "k8s of a neighbour in the pod",
        "0::/../cri-containerd-ID.scope",
        ["ID", "", "", "", "cri-containerd-ID.scope"],
    ),
];

const CONTAINERS: &[Row] = &[
    ("docker systemd", "0::/system.slice/docker-ID.scope", ["ID", "", "", "", "docker-ID.scope"]),
    ("docker cgroupfs", "0::/docker/ID", ["ID", "", "", "", ""]),
    ("docker in docker", "0::/docker/OUTER/docker/ID", ["ID", "", "", "", ""]),
    (
        "docker v1",
        "12:pids:/docker/ID\n3:memory:/docker/ID\n1:name=systemd:/docker/ID\n0::/system.slice/containerd.service",
        ["ID", "", "", "", "containerd.service"],
    ),
    (
        "docker v1 systemd",
        "10:devices:/system.slice/docker-ID.scope\n1:name=systemd:/system.slice/docker-ID.scope",
        ["ID", "", "", "", "docker-ID.scope"],
    ),
    (
        "docker rootless",
        "0::/user.slice/user-1000.slice/user@1000.service/user.slice/docker-ID.scope",
        ["ID", "", "", "", "docker-ID.scope"],
    ),
    (
        "docker cgroup parent",
        "0::/batch.slice/docker-ID.scope",
        ["ID", "", "", "", "docker-ID.scope"],
    ),
    (
        "nerdctl systemd",
        "0::/system.slice/nerdctl-ID.scope",
        ["ID", "", "", "", "nerdctl-ID.scope"],
    ),
    ("nerdctl cgroupfs", "0::/default/ID", ["ID", "", "", "", ""]),
    (
        "podman root",
        "0::/machine.slice/libpod-ID.scope/container",
        ["ID", "", "", "", "libpod-ID.scope"],
    ),
    (
        "podman rootless",
        "0::/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-ID.scope/container",
        ["ID", "", "", "", "libpod-ID.scope"],
    ),
    (
        "podman pod",
        "0::/machine.slice/machine-libpod_pod_OUTER.slice/libpod-ID.scope/container",
        ["ID", "", "", "", "libpod-ID.scope"],
    ),
    (
        "podman pod, rootless",
        "0::/user.slice/user-1000.slice/user@1000.service/user.slice/user-libpod_pod_OUTER.slice/libpod-ID.scope/container",
        ["ID", "", "", "", "libpod-ID.scope"],
    ),
    ("podman cgroupfs", "0::/libpod_parent/libpod-ID", ["ID", "", "", "", ""]),
    ("podman pod cgroupfs", "0::/libpod_parent/OUTER/libpod-ID", ["ID", "", "", "", ""]),
    (
        "podman conmon",
        "0::/machine.slice/libpod-conmon-ID.scope",
        ["", "", "", "", "libpod-conmon-ID.scope"],
    ),
    (
        "podman split",
        "0::/system.slice/web.service/libpod-payload-ID",
        ["ID", "", "", "", "web.service"],
    ),
    (
        "podman v1",
        "8:memory:/machine.slice/libpod-ID.scope\n1:name=systemd:/machine.slice/libpod-ID.scope",
        ["ID", "", "", "", "libpod-ID.scope"],
    ),
    (
        "61 digits",
        "0::/docker/3f4e8a9b0c1d2e3f4a5b6c7d8e9f0a1b2c3d4e5f60718293a4b5c6d7e8f90",
        [""; 5],
    ),
];

const JOBS: &[Row] = &[
    (
        "slurm v2",
        "0::/system.slice/slurmstepd.scope/job_4711/step_0/user/task_0",
        ["", "", "4711", "0", "slurmstepd.scope"],
    ),
    (
        "slurm v2 batch",
        "0::/system.slice/slurmstepd.scope/job_4711/step_batch/user/task_special",
        ["", "", "4711", "batch", "slurmstepd.scope"],
    ),
    (
        "slurm v2 extern (ssh)",
        "0::/system.slice/slurmstepd.scope/job_4711/step_extern/user/task_special",
        ["", "", "4711", "extern", "slurmstepd.scope"],
    ),
    (
        "slurm v2 interactive",
        "0::/system.slice/slurmstepd.scope/job_4711/step_interactive/user/task_0",
        ["", "", "4711", "interactive", "slurmstepd.scope"],
    ),
    (
        "slurm v2 stepd",
        "0::/system.slice/slurmstepd.scope/job_4711/step_12/slurm",
        ["", "", "4711", "12", "slurmstepd.scope"],
    ),
    (
        "slurm v2 several slurmd",
        "0::/system.slice/gpu-a01_slurmstepd.scope/job_4711/step_0/user/task_3",
        ["", "", "4711", "0", "gpu-a01_slurmstepd.scope"],
    ),
    (
        "slurm v2 heterogeneous",
        "0::/system.slice/slurmstepd.scope/job_4711/step_0+1/user/task_0",
        ["", "", "4711", "0+1", "slurmstepd.scope"],
    ),
    (
        "slurm v2 daemon",
        "0::/system.slice/slurmstepd.scope/system",
        ["", "", "", "", "slurmstepd.scope"],
    ),
    (
        "slurm v2, docker in the step",
        "0::/system.slice/slurmstepd.scope/job_4711/step_0/user/task_0/docker-ID.scope",
        ["ID", "", "4711", "0", "docker-ID.scope"],
    ),
    (
        "slurm v1",
        "11:memory:/slurm/uid_1000/job_12/step_0/task_0\n7:freezer:/slurm/uid_1000/job_12/step_0\n4:cpuset:/slurm/uid_1000/job_12/step_0\n2:blkio:/\n1:name=systemd:/system.slice/slurmd.service",
        ["", "", "12", "0", "slurmd.service"],
    ),
    (
        "slurm v1 freezer alone",
        "11:memory:/system.slice/slurmd.service\n7:freezer:/slurm/uid_0/job_12/step_batch\n1:name=systemd:/system.slice/slurmd.service",
        ["", "", "12", "batch", "slurmd.service"],
    ),
    (
        "slurm v1 several slurmd",
        "11:memory:/slurm_gpu-a01/uid_1000/job_12/step_3/task_1",
        ["", "", "12", "3", ""],
    ),
    (
        "slurm v1 with another root",
        "11:memory:/batch/uid_1000/job_12/step_3",
        ["", "", "12", "3", ""],
    ),
    (
        "slurm hybrid, ssh session",
        "9:cpuset:/slurm/uid_1000/job_12/step_extern\n1:name=systemd:/user.slice/user-1000.slice/session-5.scope\n0::/user.slice/user-1000.slice/session-5.scope",
        ["", "", "12", "extern", "session-5.scope"],
    ),
    (
        // The user's own units are as deep as the task.
        "slurm hybrid, service of a user",
        "9:memory:/slurm/uid_1000/job_12/step_extern/task_0\n1:name=systemd:/user.slice/user-1000.slice/user@1000.service/app.slice/a.service\n0::/user.slice/user-1000.slice/user@1000.service/app.slice/a.service",
        ["", "", "12", "extern", "a.service"],
    ),
    ("another scheduler's", "0::/spur/job_101", [""; 5]),
    ("no number", "0::/slurm/uid_0/job_a/step_0", [""; 5]),
    ("no step", "0::/slurm/uid_0/job_12/step_x", ["", "", "12", "", ""]),
];

const UNITS: &[Row] = &[
    ("systemd service", "0::/system.slice/ssh.service", ["", "", "", "", "ssh.service"]),
    (
        "systemd instance",
        "0::/system.slice/system-getty.slice/getty@tty1.service",
        ["", "", "", "", "getty@tty1.service"],
    ),
    ("systemd delegated", "0::/system.slice/app.service/a/b", ["", "", "", "", "app.service"]),
    ("systemd init", "0::/init.scope", ["", "", "", "", "init.scope"]),
    ("systemd slice", "0::/batch.slice/batch-high.slice", ["", "", "", "", "batch-high.slice"]),
    (
        "systemd session",
        "0::/user.slice/user-1000.slice/session-3.scope",
        ["", "", "", "", "session-3.scope"],
    ),
    (
        "systemd user service",
        "0::/user.slice/user-1000.slice/user@1000.service/app.slice/trainer.service",
        ["", "", "", "", "trainer.service"],
    ),
    (
        "systemd-run --user --scope",
        "0::/user.slice/user-1000.slice/user@1000.service/app.slice/run-r0f3.scope",
        ["", "", "", "", "run-r0f3.scope"],
    ),
    (
        "systemd user manager",
        "0::/user.slice/user-1000.slice/user@1000.service/init.scope",
        ["", "", "", "", "init.scope"],
    ),
    ("systemd mount", "0::/system.slice/srv-data.mount", ["", "", "", "", "srv-data.mount"]),
    (
        "systemd colon",
        "0::/system.slice/dbus-:1.2-org.a@0.service",
        ["", "", "", "", "dbus-:1.2-org.a@0.service"],
    ),
    ("systemd escaped", "0::/_cpu.slice/_memory.service", ["", "", "", "", "memory.service"]),
    (
        "systemd v1",
        "5:memory:/system.slice/ssh.service\n4:cpuset:/\n1:name=systemd:/system.slice/ssh.service",
        ["", "", "", "", "ssh.service"],
    ),
    (
        "systemd hybrid",
        "4:devices:/user.slice\n1:name=systemd:/user.slice/user-0.slice/session-1.scope\n0::/user.slice/user-0.slice/session-1.scope",
        ["", "", "", "", "session-1.scope"],
    ),
    (
        "systemd nspawn",
        "0::/machine.slice/machine-a.scope/payload",
        ["", "", "", "", "machine-a.scope"],
    ),
    ("nobody", "0::/", [""; 5]),
    ("a user's own", "0::/lab/mypod123/podman", [""; 5]),
    ("kubelet itself", "0::/system.slice/kubelet.service", ["", "", "", "", "kubelet.service"]),
];

fn filled(text: &str) -> String {
    text.replace("U_I_D", &UID.replace('-', "_"))
        .replace("UID", UID)
        .replace("OUTER", OUTER)
        .replace("STATIC", STATIC)
        .replace("ID", ID)
}

#[test]
fn whose_a_cgroup_is_is_told_in_every_form() {
    for (made_by, file, expected) in [PODS, CONTAINERS, JOBS, UNITS].into_iter().flatten() {
        let [container_id, pod_uid, slurm_job, slurm_step, systemd_unit] = expected.map(filled);
        let expected = Owner { container_id, pod_uid, slurm_job, slurm_step, systemd_unit };
        let file = filled(file) + "\n";
        assert_eq!(Cgroups::parse(&file).owner(), expected, "{made_by}: {file}");
    }
}
