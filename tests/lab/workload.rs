//! The C programs that register and pin memory, and the kernel's own word on what they hold.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::Value;

/// A running program that answers each line with a line of JSON.
pub struct Workload {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    pub pid: u32,
}

impl Workload {
    /// `target/lab/workload`, ready for commands.
    pub fn start() -> Result<Self, String> {
        Self::spawn(&["target/lab/workload", "--device", "rxe0"]).map(|(started, _)| started)
    }

    /// The same, by a program that starts it.
    pub fn start_by(starter: &[&str]) -> Result<Self, String> {
        let words = [starter, &["target/lab/workload", "--device", "rxe0"]].concat();
        Self::spawn(&words).map(|(started, _)| started)
    }

    /// The same, in a cgroup below /sys/fs/cgroup.
    pub fn start_in(cgroup: &str) -> Result<Self, String> {
        let join = format!("echo $$ >/sys/fs/cgroup/{cgroup}/cgroup.procs && exec \"$@\"");
        Self::start_by(&["sh", "-c", &join, "sh"])
    }

    /// The same, with a pid that is free.
    pub fn start_with_pid(wanted: u32) -> Result<Self, String> {
        const TRIES: u32 = 100;
        for _ in 0..TRIES {
            let last = (wanted - 1).to_string();
            std::fs::write("/proc/sys/kernel/ns_last_pid", last).map_err(|e| e.to_string())?;
            // Somebody else may have been faster.
            let started = Self::start()?;
            if started.pid == wanted {
                return Ok(started);
            }
        }
        Err(format!("the pid {wanted} could not be had in {TRIES} tries"))
    }

    /// Starts a program and takes its first line.
    pub fn spawn(words: &[&str]) -> Result<(Self, Value), String> {
        let mut child = Command::new(words[0])
            .args(&words[1..])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("{}: {error}", words[0]))?;
        let input = child.stdin.take();
        let output = child.stdout.take().ok_or("no stdout")?;
        let pid = child.id();
        let mut started = Self { child, input, output: BufReader::new(output), pid };
        let first = started.answer("its first line")?;
        Ok((started, first))
    }

    /// Sends a command; its reply says ok.
    pub fn ask(&mut self, command: &str) -> Result<Value, String> {
        let reply = self.ask_freely(command)?;
        if reply["ok"] == Value::Bool(false) {
            return Err(format!("{command}: {reply}"));
        }
        Ok(reply)
    }

    /// Sends a command, whatever comes of it.
    pub fn ask_freely(&mut self, command: &str) -> Result<Value, String> {
        let input = self.input.as_mut().ok_or("its input is closed")?;
        writeln!(input, "{command}").and_then(|()| input.flush()).map_err(|e| e.to_string())?;
        self.answer(command)
    }

    /// The signal that ended it, which is waited for.
    pub fn ended_by(&mut self) -> Result<Option<i32>, String> {
        use std::os::unix::process::ExitStatusExt;
        self.child.wait().map(|status| status.signal()).map_err(|error| error.to_string())
    }

    fn answer(&mut self, to: &str) -> Result<Value, String> {
        let mut line = String::new();
        self.output.read_line(&mut line).map_err(|error| error.to_string())?;
        serde_json::from_str(&line).map_err(|error| format!("{to}: {error}: {line:?}"))
    }

    /// Closes its input and waits for its end.
    pub fn end(mut self) -> Result<(), String> {
        drop(self.input.take());
        self.child.wait().map(|_| ()).map_err(|error| error.to_string())
    }

    /// kill -9, and the wait for its end.
    pub fn kill(mut self) -> Result<(), String> {
        self.child.kill().and_then(|()| self.child.wait()).map(|_| ()).map_err(|e| e.to_string())
    }
}

impl Drop for Workload {
    fn drop(&mut self) {
        // A case that failed leaves none behind.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A number of a reply.
pub fn number(reply: &Value, key: &str) -> Result<f64, String> {
    reply[key].as_f64().ok_or_else(|| format!("no number {key} in {reply}"))
}

/// VmPin of a process in bytes, by /proc.
pub fn vm_pin(pid: u32) -> Result<f64, String> {
    status_bytes(&pid.to_string(), "VmPin")
}

/// A line of kilobytes of /proc/PLACE/status, in bytes.
pub fn status_bytes(place: &str, name: &str) -> Result<f64, String> {
    let status =
        std::fs::read_to_string(format!("/proc/{place}/status")).map_err(|e| e.to_string())?;
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    let kilobytes = line.and_then(|rest| rest.split_whitespace().next()?.parse::<f64>().ok());
    kilobytes.map(|kb| kb * 1024.0).ok_or_else(|| format!("no {name} of {place}"))
}

/// A field of /proc/PID/stat after the name, by its number in proc(5), from 3 on.
pub fn stat_field(pid: u32, number: usize) -> Result<String, String> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).map_err(|e| e.to_string())?;
    let rest = stat.rsplit_once(')').map(|(_, rest)| rest);
    let field = rest.and_then(|rest| rest.split_whitespace().nth(number.checked_sub(3)?));
    field.map(str::to_owned).ok_or_else(|| format!("no field {number} in {stat}"))
}

/// What is pinned for so many bytes from the start of a page on: base pages, whole.
pub fn whole_pages(bytes: f64) -> f64 {
    let page = rustix::param::page_size() as f64;
    (bytes / page).ceil() * page
}

/// The one child of a process, with the pid that the reader sees.
pub fn child_of(pid: u32) -> Result<u32, String> {
    let path = format!("/proc/{pid}/task/{pid}/children");
    let children = std::fs::read_to_string(path).map_err(|e| e.to_string())?;
    children.trim().parse().map_err(|_| format!("{pid} has not one child but {children:?}"))
}

/// Count and total length of rxe0's MRs, by RDMA netlink.
pub fn kernel_mrs() -> Result<(f64, f64), String> {
    let output = Command::new("rdma").args(["-j", "resource", "show", "mr"]).output();
    let output = output.map_err(|error| format!("rdma: {error}"))?;
    let rows: Value = serde_json::from_slice(&output.stdout).map_err(|e| format!("rdma: {e}"))?;
    let rows = rows.as_array().ok_or("rdma: no list")?;
    let lengths: f64 = rows.iter().filter_map(|row| row["mrlen"].as_f64()).sum();
    Ok((rows.len() as f64, lengths))
}
