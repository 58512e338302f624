//! The binary on the machine's own kernel, whatever that can do: it starts, serves, says what is
//! missing, and stops. Nothing here needs RDMA.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

/// Guard against a hang; nothing is judged by it.
const HANG: Duration = Duration::from_secs(30);

fn mrscope() -> Command {
    Command::new(env!("CARGO_BIN_EXE_mrscope"))
}

fn run(arguments: &[&str]) -> Output {
    mrscope().args(arguments).output().unwrap()
}

/// A serving mrscope.
struct Served {
    child: Child,
    port: u16,
    log: BufReader<std::process::ChildStderr>,
}

impl Served {
    fn start() -> Self {
        let mut command = mrscope();
        command.args(["--web.listen-address", "127.0.0.1:0"]);
        Self::spawn(command)
    }

    /// Starts it and waits until it is ready.
    fn spawn(mut command: Command) -> Self {
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let mut log = BufReader::new(child.stderr.take().unwrap());
        let mut port = None;
        let mut line = String::new();
        while log.read_line(&mut line).unwrap() > 0 {
            if let Some((_, rest)) = line.split_once("serving http://127.0.0.1:") {
                port = rest.split('/').next().and_then(|port| port.parse().ok());
            }
            if line.trim_end().ends_with("ready") {
                break;
            }
            line.clear();
        }
        Self { child, port: port.expect("mrscope named its port"), log }
    }

    fn request(&self, head: &str) -> (String, Vec<u8>) {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.set_read_timeout(Some(HANG)).unwrap();
        write!(stream, "{head}\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        let end = answer.windows(4).position(|window| window == b"\r\n\r\n").unwrap();
        let body = answer.split_off(end + 4);
        (String::from_utf8(answer).unwrap().to_lowercase(), body)
    }

    fn get(&self, path: &str) -> (String, String) {
        let (head, body) = self.request(&format!("GET {path} HTTP/1.1"));
        (head, String::from_utf8(body).unwrap())
    }

    fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args([name, &pid]).status().unwrap().success());
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn it_serves_whatever_this_kernel_can_do() {
    let served = Served::start();
    let (head, page) = served.get("/metrics");
    assert!(head.starts_with("http/1.1 200"), "{head}");
    assert!(head.contains("content-type: text/plain; version=0.0.4; charset=utf-8"), "{head}");
    assert!(page.contains("mrscope_build_info{version="), "{page}");
    // In one state, and in no more than one.
    let states: Vec<_> = page
        .lines()
        .filter(|line| line.starts_with("mrscope_collector_state{collector=\"mr\""))
        .filter(|line| line.ends_with(" 1"))
        .collect();
    assert_eq!(states.len(), 1, "{states:?}");
}

#[test]
fn every_path_answers_as_it_should() {
    let served = Served::start();
    for (path, status, text) in [
        ("/", "200", "<a href=\"/metrics\">"),
        ("/-/healthy", "200", "healthy"),
        ("/-/ready", "200", "ready"),
        ("/nowhere", "404", ""),
    ] {
        let (head, body) = served.get(path);
        assert!(head.starts_with(&format!("http/1.1 {status}")), "{path}: {head}");
        assert!(body.contains(text), "{path}: {body}");
    }
    let (head, _) = served.request("POST /metrics HTTP/1.1\r\nContent-Length: 0");
    assert!(head.starts_with("http/1.1 405"), "{head}");
}

#[test]
fn gzip_comes_when_asked_and_is_the_same_page() {
    let served = Served::start();
    let (head, plain) = served.get("/metrics");
    assert!(!head.contains("content-encoding"), "{head}");
    let (head, packed) = served.request("GET /metrics HTTP/1.0\r\nAccept-Encoding: gzip");
    assert!(head.contains("content-encoding: gzip"), "{head}");
    let mut gzip = Command::new("gzip")
        .arg("-dc")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    gzip.stdin.take().unwrap().write_all(&packed).unwrap();
    let unpacked = String::from_utf8(gzip.wait_with_output().unwrap().stdout).unwrap();
    let names = |page: &str| -> Vec<String> {
        page.lines().filter_map(|line| line.split_once(' ')).map(|(name, _)| name.into()).collect()
    };
    assert_eq!(names(&unpacked), names(&plain));
}

#[test]
fn a_scraper_that_sends_nothing_holds_up_nobody_and_no_stop() {
    let mut served = Served::start();
    let _silent: Vec<_> =
        (0..60).map(|_| TcpStream::connect(("127.0.0.1", served.port)).unwrap()).collect();
    assert!(served.get("/metrics").0.starts_with("http/1.1 200"));
    served.signal("-TERM");
    assert!(served.child.wait().unwrap().success());
}

#[test]
fn term_and_interrupt_end_it_well() {
    for signal in ["-TERM", "-INT"] {
        let mut served = Served::start();
        served.signal(signal);
        assert!(served.child.wait().unwrap().success(), "{signal}");
        let mut rest = String::new();
        served.log.read_to_string(&mut rest).unwrap();
        assert!(rest.contains("stopping"), "{rest}");
    }
}

#[test]
fn a_taken_port_is_named_on_one_line() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let output = run(&["--web.listen-address", &address]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(said.contains(&address) && said.contains("expected a free address"), "{said}");
}

#[test]
fn bad_usage_is_one_line_and_exit_2() {
    for arguments in [&["--nonsense"][..], &["--log.level", "loud"], &["--web.listen-address", "x"]]
    {
        let output = run(arguments);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
        assert!(said.contains(arguments.last().unwrap()) && said.contains("expected"), "{said}");
    }
}

#[test]
fn without_capabilities_it_is_denied_and_no_success() {
    // Root without a bounding set has none; a kernel that lets everybody load BPF is not Debian's.
    let mut command = Command::new("setpriv");
    command.args(["--bounding-set", "-all", "--inh-caps", "-all", "--"]).args([
        env!("CARGO_BIN_EXE_mrscope"),
        "--web.listen-address",
        "127.0.0.1:0",
    ]);
    let served = Served::spawn(command);
    let (_, page) = served.get("/metrics");
    assert!(
        page.contains("mrscope_collector_state{collector=\"mr\",state=\"denied\"} 1\n"),
        "{page}"
    );
    assert!(page.contains("mrscope_scrape_collector_success{collector=\"mr\"} 0\n"), "{page}");
    assert!(
        page.contains("mrscope_scrape_collector_success{collector=\"exporter\"} 1\n"),
        "{page}"
    );
}

#[test]
fn help_and_version_are_no_errors() {
    for flag in ["--help", "--version"] {
        let output = run(&[flag]);
        assert_eq!(output.status.code(), Some(0));
        assert!(output.stderr.is_empty());
        assert!(String::from_utf8(output.stdout).unwrap().contains("mrscope"));
    }
}
