//! mrscope as its users run it: the binary, on this machine, on ports of its own.
// Each test file uses its part of it.
#![allow(dead_code)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Guard against a hang; nothing is judged by it.
const HANG: Duration = Duration::from_secs(30);

pub fn mrscope() -> Command {
    Command::new(env!("CARGO_BIN_EXE_mrscope"))
}

/// Exit status, stdout and stderr of one that ends by itself.
pub fn run(arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = mrscope().args(arguments).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

/// A serving mrscope.
pub struct Served {
    child: Child,
    log: BufReader<ChildStderr>,
    /// Lines up to the one that says that it is ready.
    pub said: Vec<String>,
    /// HOST:PORT/PATH of each page.
    pub pages: Vec<String>,
}

impl Served {
    /// On one port, with these flags besides.
    pub fn start(arguments: &[&str]) -> Self {
        let mut command = mrscope();
        command.args(["--web.listen-address", "127.0.0.1:0"]).args(arguments);
        Self::spawn(command, 1)
    }

    /// Starts it, and waits until it is ready and has named so many pages.
    pub fn spawn(mut command: Command, pages: usize) -> Self {
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let log = BufReader::new(child.stderr.take().unwrap());
        let mut served = Self { child, log, said: Vec::new(), pages: Vec::new() };
        let mut ready = false;
        while !ready || served.pages.len() < pages {
            let mut line = String::new();
            let length = served.log.read_line(&mut line).unwrap();
            assert!(length > 0, "mrscope ended: {:?}", served.said);
            let line = line.trim_end();
            // In logfmt and in JSON alike a quote ends the message.
            if let Some((_, page)) = line.split_once("serving http://") {
                served.pages.push(page.split('"').next().unwrap().to_owned());
            }
            ready |= line.trim_end_matches(['"', '}']).ends_with("ready");
            served.said.push(line.to_owned());
        }
        served
    }

    /// Starts it, and waits until it is ready at the address that it was told.
    pub fn spawn_silent(mut command: Command, address: &str) -> Self {
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let log = BufReader::new(child.stderr.take().unwrap());
        let mut served = Self { child, log, said: Vec::new(), pages: vec![address.to_owned()] };
        let begun = Instant::now();
        while TcpStream::connect(address).is_err() || !served.get("/-/ready").0.contains(" 200 ") {
            assert!(served.child.try_wait().unwrap().is_none(), "it ended");
            assert!(begun.elapsed() < HANG, "waited in vain for {address}");
            std::thread::yield_now();
        }
        served
    }

    /// HOST:PORT of the first page.
    pub fn address(&self) -> &str {
        self.pages[0].split('/').next().unwrap()
    }

    /// Head in small letters, and body.
    pub fn request(&self, head: &str) -> (String, Vec<u8>) {
        request(self.address(), head)
    }

    pub fn get(&self, path: &str) -> (String, String) {
        get(self.address(), path)
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args([name, &pid]).status().unwrap().success());
    }

    pub fn wait(&mut self) -> ExitStatus {
        self.child.wait().unwrap()
    }

    /// What it logs from now on until its end.
    pub fn rest_of_log(&mut self) -> String {
        let mut rest = String::new();
        self.log.read_to_string(&mut rest).unwrap();
        rest
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn get(address: &str, path: &str) -> (String, String) {
    let (head, body) = request(address, &format!("GET {path} HTTP/1.1"));
    (head, String::from_utf8(body).unwrap())
}

fn request(address: &str, head: &str) -> (String, Vec<u8>) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(HANG)).unwrap();
    write!(stream, "{head}\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    let end = answer.windows(4).position(|window| window == b"\r\n\r\n").unwrap();
    let body = answer.split_off(end + 4);
    (String::from_utf8(answer).unwrap().to_lowercase(), body)
}
