//! A real Prometheus scrapes a real mrscope, and takes the alerts.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::Served;
use mrscope::model::COLLECTORS;
use serde_json::Value;

/// Guard against a hang; nothing is judged by it.
const HANG: Duration = Duration::from_secs(30);

/// A Prometheus with one target, which ends and leaves nothing when dropped.
struct Prometheus {
    child: Child,
    folder: PathBuf,
    address: String,
}

impl Prometheus {
    fn start(target: &str) -> Self {
        let folder =
            std::env::temp_dir().join(format!("mrscope-prometheus-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let rules = concat!(env!("CARGO_MANIFEST_DIR"), "/dashboards/rules/*.yaml");
        let configuration = format!(
            "global: {{scrape_interval: 1s, evaluation_interval: 1s}}\n\
             rule_files: [{rules}]\n\
             scrape_configs:\n- job_name: mrscope\n  static_configs: [{{targets: [\"{target}\"]}}]\n"
        );
        std::fs::write(folder.join("prometheus.yaml"), configuration).unwrap();
        // Free a moment ago; taken by another, Prometheus says so and the test fails.
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
        let child = Command::new("prometheus")
            .arg(format!("--config.file={}", folder.join("prometheus.yaml").display()))
            .arg(format!("--storage.tsdb.path={}", folder.join("data").display()))
            .arg(format!("--web.listen-address={address}"))
            .stderr(Stdio::null())
            .spawn()
            .expect("prometheus is installed by scripts/need.sh test");
        Self { child, folder, address }
    }

    /// The `data` of an answer of its API; None until it answers.
    fn ask(&self, path: &str) -> Option<Value> {
        let mut stream = TcpStream::connect(&self.address).ok()?;
        stream.set_read_timeout(Some(HANG)).unwrap();
        write!(stream, "GET /api/v1/{path} HTTP/1.0\r\n\r\n").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        let (_, body) = answer.split_once("\r\n\r\n")?;
        let answer: Value = serde_json::from_str(body).ok()?;
        (answer["status"] == "success").then(|| answer["data"].clone())
    }

    /// What it makes of a query; None if it refuses it, too.
    fn evaluate(&self, query: &str) -> Option<Value> {
        let query: String = form_urlencoded::byte_serialize(query.as_bytes()).collect();
        self.ask(&format!("query?query={query}"))
    }

    /// Labels and values of an instant query.
    fn query(&self, query: &str) -> Vec<(Value, String)> {
        let data = self.evaluate(query).unwrap_or_default();
        let results = data["result"].as_array().cloned().unwrap_or_default();
        let value = |result: &Value| result["value"][1].as_str().unwrap_or_default().to_owned();
        results.iter().map(|result| (result["metric"].clone(), value(result))).collect()
    }

    fn wait_for(&self, query: &str, holds: impl Fn(&[(Value, String)]) -> bool) {
        let begun = Instant::now();
        while !holds(&self.query(query)) {
            assert!(begun.elapsed() < HANG, "waited in vain for {query}: {:?}", self.query(query));
            std::thread::park_timeout(Duration::from_millis(100));
        }
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Queries of all panels, with values for Grafana's variables.
fn panel_queries() -> Vec<String> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/dashboards");
    let mut found = Vec::new();
    for file in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        if file.extension().is_none_or(|is| is != "json") {
            continue;
        }
        let text = std::fs::read_to_string(file).unwrap();
        let dashboard: Value = serde_json::from_str(&text).unwrap();
        let panels = dashboard["panels"].as_array().unwrap();
        for target in panels.iter().filter_map(|panel| panel["targets"].as_array()).flatten() {
            let query = target["expr"].as_str().unwrap();
            let query = query.replace("$__rate_interval", "10s").replace("$__range", "10s");
            found.push(query.replace("$job", ".+").replace("$instance", ".+"));
        }
    }
    found
}

#[test]
fn a_real_prometheus_takes_the_page_and_the_rules() {
    let served = Served::start(&[]);
    let prometheus = Prometheus::start(served.address());
    prometheus.wait_for("up", |up| up.len() == 1 && up[0].1 == "1");
    // Every collector is in one state.
    prometheus.wait_for("sum by (collector) (mrscope_collector_state)", |states| {
        states.len() == COLLECTORS.len() && states.iter().all(|(_, value)| value == "1")
    });
    // No label of ours was renamed, as Prometheus does where it collides with a target's own.
    let all = prometheus.query("{__name__=~\"mrscope_.+\"}");
    let renamed = |(labels, _): &&(Value, String)| {
        labels.as_object().unwrap().keys().any(|label| label.starts_with("exported_"))
    };
    assert!(all.len() > 20);
    assert_eq!(all.iter().find(renamed), None);

    // No panel matches many series to many, which is found where there are series alone.
    let queries = panel_queries();
    let refused: Vec<_> =
        queries.iter().filter(|query| prometheus.evaluate(query).is_none()).collect();
    assert!(refused.is_empty(), "{refused:#?}");
    let shows = |query: &&String| !prometheus.query(query).is_empty();
    assert!(queries.iter().filter(shows).count() > 10, "few of {} show anything", queries.len());

    let rules = prometheus.ask("rules").unwrap();
    let rules: Vec<_> = rules["groups"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|group| group["rules"].as_array().unwrap())
        .cloned()
        .collect();
    assert!(rules.iter().any(|rule| rule["name"] == "MrscopePinnedMemoryHigh"), "{rules:?}");
    assert!(rules.iter().all(|rule| rule["health"] != "err"), "{rules:?}");
}
