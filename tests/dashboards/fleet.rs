//! The dashboard of the write probe over a fleet in which one port became slow and one fails.

use std::fs;

use serde_json::{Value, json};

use super::{list, promtool, read, text};

const HOSTS: usize = 12;
/// A little over a day in steps of five minutes.
const STEPS: usize = 300;
const NOW: &str = "1500m";
/// The last hour.
const SLOW: usize = 12;

fn series(name: &str, labels: &str, values: &str) -> Value {
    json!({"series": format!("mrscope_{name}{{job=\"mrscope\",{labels}}}"), "values": values})
}

/// What a port of the fleet has: figures that rise, as no two runs are alike.
fn port(host: usize, device: &str, is_slow: bool) -> Vec<Value> {
    let port = format!("instance=\"h{host}\",device=\"{device}\",port=\"1\"");
    let measured = format!("{port},page_size=\"2097152\",numa_node=\"0\"");
    // Two sizes of one port: its rate is joined to both.
    let small = format!("{port},page_size=\"4096\",numa_node=\"0\"");
    let fast = format!("20000+1x{STEPS}");
    let usual = STEPS - SLOW;
    let slow = format!("20000+1x{usual} 10000+1x{SLOW}");
    let of_probe = |name: &str, labels: &str, values: &str| {
        series(&format!("write_probe_{name}"), labels, values)
    };
    let figure = |name| of_probe(name, &measured, &format!("1+1x{STEPS}"));
    let run = |result, values: &str| {
        of_probe("runs_total", &format!("{port},result=\"{result}\""), values)
    };
    vec![
        of_probe("bandwidth_bytes_per_second", &measured, if is_slow { &slow } else { &fast }),
        of_probe("bandwidth_bytes_per_second", &small, &fast),
        figure("latency_p50_seconds"),
        figure("latency_p99_seconds"),
        figure("mr_registration_seconds"),
        of_probe("success", &port, &format!("{}x{STEPS}", u8::from(!is_slow))),
        of_probe("last_run_timestamp_seconds", &port, &format!("0+300x{STEPS}")),
        of_probe("port_rate_bytes_per_second", &port, &format!("25000x{STEPS}")),
        of_probe("unseen_total", &port, &format!("0+1x{STEPS}")),
        run("ok", &format!("0+1x{STEPS}")),
        run("skipped_busy", &format!("0+1x{STEPS}")),
        run("device", &format!("0+1x{STEPS}")),
        run("data_mismatch", &format!("1x{STEPS}")),
    ]
}

/// A query that has to give one 1: there is something to show, and nothing is matched many to many.
fn shows(expression: &str) -> Value {
    let counted = format!("count({expression}) > bool 0");
    json!({"expr": counted, "eval_time": NOW, "exp_samples": [{"labels": "{}", "value": 1}]})
}

#[test]
fn the_write_probe_s_dashboard_shows_the_slow_port_of_a_fleet() {
    let mut input = Vec::new();
    for (host, device) in (0..HOSTS).flat_map(|host| [(host, "mlx5_0"), (host, "mlx5_1")]) {
        input.extend(port(host, device, (host, device) == (7, "mlx5_1")));
    }
    let state = "instance=\"h7\",collector=\"write_probe\",state=\"failed\"";
    input.push(series("collector_state", state, &format!("1x{STEPS}")));

    let dashboard: Value = serde_json::from_str(&read("dashboards/write-probe.json")).unwrap();
    let expression = |target| {
        let plain = text(target, "expr").replace("$__rate_interval", "15m");
        let plain = plain.replace("$__range", "6h");
        plain.replace("$job", "mrscope").replace("$instance", ".+")
    };
    let panels = list(&dashboard, "panels");
    let queries = panels.iter().flat_map(|panel| list(panel, "targets"));
    let mut expected: Vec<Value> = queries.map(|target| shows(&expression(target))).collect();
    assert!(expected.len() > 20);

    let first = panels.iter().find(|panel| text(panel, "type") == "table").unwrap();
    let share = expression(&list(first, "targets")[0]);
    let told = format!("round(min by (instance, device, port) ({share} < 0.7), 0.01)");
    let slow = json!({"labels": "{instance=\"h7\",device=\"mlx5_1\",port=\"1\"}", "value": 0.5});
    expected.push(json!({"expr": told, "eval_time": NOW, "exp_samples": [slow]}));
    let rows = format!("count({share})");
    let twenty = json!({"labels": "{}", "value": 20});
    expected.push(json!({"expr": rows, "eval_time": NOW, "exp_samples": [twenty]}));

    let test = json!({
        "evaluation_interval": "5m",
        "tests": [{"interval": "5m", "input_series": input, "promql_expr_test": expected}],
    });
    let file = std::env::temp_dir().join(format!("mrscope-fleet-{}.yaml", std::process::id()));
    fs::write(&file, test.to_string()).unwrap();
    let (good, said) = promtool(&["test", "rules"], &[file.to_str().unwrap().to_owned()]);
    fs::remove_file(&file).unwrap();
    assert!(good, "{said}");
}
