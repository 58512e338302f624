//! mrscope as its users run it: the release binary, on a port of its own.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::page::{Page, get};

/// Guard against a hang, where two guests share a machine; nothing is judged by it.
const HANG: Duration = Duration::from_mins(1);
const PAUSE: Duration = Duration::from_millis(50);

pub struct Exporter {
    child: Child,
    pub port: u16,
    log: Arc<Mutex<String>>,
    /// Ends with the log.
    reader: Option<JoinHandle<()>>,
}

impl Exporter {
    /// Starts mrscope and waits until it is ready.
    pub fn start(arguments: &[&str]) -> Result<Self, String> {
        Self::start_by(&[], arguments)
    }

    /// The same, by a program that starts it.
    pub fn start_by(starter: &[&str], arguments: &[&str]) -> Result<Self, String> {
        let words = [starter, &["target/release/mrscope"]].concat();
        let mut child = Command::new(words[0])
            .args(&words[1..])
            .args(["--web.listen-address", "127.0.0.1:0"])
            // Its registrations would be among those that are counted; the last word holds.
            .arg("--no-collector.write_probe")
            .args(arguments)
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| format!("mrscope: {error}"))?;
        let log = child.stderr.take().ok_or("no stderr")?;
        let (say_port, port) = std::sync::mpsc::channel();
        let all = Arc::new(Mutex::new(String::new()));
        let copy = Arc::clone(&all);
        let reader = std::thread::spawn(move || {
            for line in BufReader::new(log).lines().map_while(Result::ok) {
                let port = line
                    .split_once("serving http://127.0.0.1:")
                    .and_then(|(_, rest)| rest.split('/').next()?.parse::<u16>().ok());
                if let Some(port) = port {
                    let _ = say_port.send(port);
                }
                eprintln!("  mrscope: {line}");
                let mut all = copy.lock().unwrap_or_else(PoisonError::into_inner);
                all.push_str(&line);
                all.push('\n');
            }
        });
        let port = port.recv_timeout(HANG).map_err(|_| "mrscope named no port")?;
        let started = Self { child, port, log: all, reader: Some(reader) };
        wait_for("ready", || Ok(get(port, "/-/ready")?.0 == 200))?;
        Ok(started)
    }

    pub fn page(&self) -> Result<Page, String> {
        Page::fetch(self.port)
    }

    /// What it has logged so far.
    pub fn log(&self) -> String {
        self.log.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits for a line of the log that has all these words.
    pub fn says(&self, words: &[&str]) -> Result<(), String> {
        wait_for(&format!("a line of the log with {words:?}"), || {
            Ok(self.log().lines().any(|line| words.iter().all(|word| line.contains(word))))
        })
    }

    /// The pid of what was started: mrscope, or who started it.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// TERM, and the wait for its end.
    pub fn stop(mut self) -> Result<ExitStatus, String> {
        signal(self.child.id(), "TERM")?;
        self.child.wait().map_err(|error| error.to_string())
    }

    /// Stops it; all that it has logged.
    pub fn end(mut self) -> Result<String, String> {
        signal(self.child.id(), "TERM")?;
        self.child.wait().map_err(|error| error.to_string())?;
        let reader = self.reader.take().map(JoinHandle::join);
        match reader {
            Some(Ok(())) => Ok(self.log()),
            _ => Err("the reader of mrscope's log panicked".to_owned()),
        }
    }

    pub fn kill(mut self) -> Result<(), String> {
        self.child.kill().and_then(|()| self.child.wait()).map(|_| ()).map_err(|e| e.to_string())
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        // A case that failed leaves none behind.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn signal(pid: u32, name: &str) -> Result<(), String> {
    let status = Command::new("kill").args([format!("-{name}"), pid.to_string()]).status();
    match status {
        Ok(status) if status.success() => Ok(()),
        other => Err(format!("kill -{name} {pid}: {other:?}")),
    }
}

/// Asks again and again until it holds.
pub fn wait_for(what: &str, mut holds: impl FnMut() -> Result<bool, String>) -> Result<(), String> {
    let begun = Instant::now();
    let mut last = String::new();
    while begun.elapsed() < HANG {
        match holds() {
            Ok(true) => return Ok(()),
            Ok(false) => {}
            Err(error) => last = error,
        }
        std::thread::park_timeout(PAUSE);
    }
    Err(format!("waited in vain: {what}; {last}"))
}
