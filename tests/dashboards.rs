//! What is made of the metrics: the dashboard and the alert rules name only what the catalogue has,
//! follow Grafana's and Prometheus' customs, and promtool finds the rules right in both directions.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use mrscope::metrics::{self, Kind, Metric};
use promql_parser::label::{MatchOp, Matchers};
use promql_parser::parser::{
    self, AggregateExpr, BinaryExpr, Expr, LabelModifier, VectorMatchCardinality, VectorSelector,
};
use serde_json::Value;

/// What tells processes apart unless it is configured otherwise.
const PROCESS: [&str; 2] = ["pid", "comm"];

/// What a scrape adds to every series.
const TARGET: [&str; 2] = ["job", "instance"];

/// Stand-ins for Grafana's variables, which are no durations yet.
const RATE_INTERVAL: Duration = Duration::from_mins(7);
const RANGE: Duration = Duration::from_mins(11);

type Labels = BTreeSet<String>;

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn read(name: &str) -> String {
    fs::read_to_string(root().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Files of a folder, as names from the root.
fn files(folder: &str, extension: &str) -> Vec<String> {
    let mut found: Vec<_> = fs::read_dir(root().join(folder))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|is| is == extension))
        .map(|path| format!("{folder}/{}", path.file_name().unwrap().to_str().unwrap()))
        .collect();
    found.sort();
    assert!(!found.is_empty(), "{folder} has no .{extension}");
    found
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_default()
}

fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value[key].as_array().map_or(&[], Vec::as_slice)
}

// ---- PromQL

/// A series name taken apart: its metric's labels, and whether it only rises.
fn series(name: &str) -> Option<(Vec<&'static str>, bool)> {
    let labels = |metric: &'static Metric| -> Vec<&'static str> {
        let process = if metric.of_processes() { &PROCESS[..] } else { &[] };
        process.iter().chain(metric.labels).copied().collect()
    };
    if let Some(metric) = metrics::find(name) {
        assert!(metric.kind != Kind::Histogram, "{name} is a histogram: it has no such series");
        return Some((labels(metric), metric.kind == Kind::Counter));
    }
    for (suffix, more) in [("_bucket", Some("le")), ("_sum", None), ("_count", None)] {
        let metric = name.strip_suffix(suffix).and_then(metrics::find);
        if let Some(metric) = metric.filter(|metric| metric.kind == Kind::Histogram) {
            return Some((labels(metric).into_iter().chain(more).collect(), true));
        }
    }
    // Prometheus' own.
    (name == "up").then(|| (Vec::new(), false))
}

/// The ways that a counter is read by: each sees a restart.
fn reads_counters(function: &str, range: Duration) -> bool {
    match function {
        "rate" => range == RATE_INTERVAL,
        // By the series of ended processes, whose first value is a failure already.
        "increase" | "max_over_time" => range == RANGE,
        _ => false,
    }
}

/// Walks an expression: labels of its result, and what is wrong in it.
struct Query {
    wrong: Vec<String>,
    selectors: Vec<Matchers>,
    /// Whether the ranges are Grafana's.
    dashboard: bool,
}

impl Query {
    fn check(expression: &str, dashboard: bool) -> (Self, Labels) {
        let mut query = Self { wrong: Vec::new(), selectors: Vec::new(), dashboard };
        let plain = expression
            .replace("$__rate_interval", &format!("{}s", RATE_INTERVAL.as_secs()))
            .replace("$__range", &format!("{}s", RANGE.as_secs()));
        let labels = match parser::parse(&plain) {
            Ok(tree) => query.walk(&tree),
            Err(error) => {
                query.wrong.push(error);
                Labels::new()
            }
        };
        (query, labels)
    }

    fn walk(&mut self, tree: &Expr) -> Labels {
        match tree {
            Expr::VectorSelector(selector) => self.select(selector, None),
            Expr::MatrixSelector(_) => panic!("a range outside a function does not parse"),
            Expr::Call(call) => {
                let mut labels = Labels::new();
                for argument in &call.args.args {
                    labels.append(&mut match &**argument {
                        Expr::MatrixSelector(matrix) => {
                            self.select(&matrix.vs, Some((call.func.name, matrix.range)))
                        }
                        other => self.walk(other),
                    });
                }
                if call.func.name == "histogram_quantile" && !labels.remove("le") {
                    self.wrong.push("histogram_quantile of what has no le".into());
                }
                labels
            }
            Expr::Aggregate(aggregate) => self.aggregate(aggregate),
            Expr::Binary(binary) => self.join(binary),
            Expr::Paren(paren) => self.walk(&paren.expr),
            Expr::Unary(unary) => self.walk(&unary.expr),
            Expr::Subquery(subquery) => self.walk(&subquery.expr),
            _ => Labels::new(),
        }
    }

    fn select(&mut self, selector: &VectorSelector, inside: Option<(&str, Duration)>) -> Labels {
        let name = selector.name.as_deref().unwrap_or_default();
        self.selectors.push(selector.matchers.clone());
        let Some((labels, rises)) = series(name) else {
            self.wrong.push(format!("'{name}' is not in the catalogue"));
            return Labels::new();
        };
        let labels: Labels = labels.into_iter().chain(TARGET).map(Into::into).collect();
        for matcher in &selector.matchers.matchers {
            if !labels.contains(&matcher.name) {
                self.wrong.push(format!("{name} has no label '{}'", matcher.name));
            }
        }
        let read_well = match inside {
            Some((function, range)) if self.dashboard => reads_counters(function, range),
            Some((function, _)) => matches!(function, "rate" | "increase"),
            None => false,
        };
        if rises && !read_well {
            self.wrong.push(format!("{name} only rises: read it by rate[$__rate_interval]"));
        }
        labels
    }

    fn aggregate(&mut self, aggregate: &AggregateExpr) -> Labels {
        let inner = self.walk(&aggregate.expr);
        let keeps = matches!(aggregate.op.to_string().as_str(), "topk" | "bottomk");
        match &aggregate.modifier {
            Some(LabelModifier::Include(by)) => {
                self.known(&by.labels, &inner);
                by.labels.iter().cloned().collect()
            }
            Some(LabelModifier::Exclude(without)) => {
                self.known(&without.labels, &inner);
                inner.into_iter().filter(|label| !without.labels.contains(label)).collect()
            }
            None if keeps => inner,
            None => Labels::new(),
        }
    }

    fn join(&mut self, binary: &BinaryExpr) -> Labels {
        let (mut left, right) = (self.walk(&binary.lhs), self.walk(&binary.rhs));
        if matches!(&*binary.rhs, Expr::NumberLiteral(_)) {
            return left;
        }
        let modifier = binary.modifier.as_ref();
        let on = modifier.and_then(|modifier| modifier.matching.as_ref());
        if let Some(on) = on {
            self.known(&on.labels().labels, &left);
            self.known(&on.labels().labels, &right);
        } else if left != right && !binary.op.is_set_operator() {
            self.wrong.push(format!("{left:?} never matches {right:?}"));
        }
        if binary.op.to_string() == "or" {
            left.extend(right);
        }
        match modifier.map(|modifier| &modifier.card) {
            Some(VectorMatchCardinality::OneToOne) if !binary.op.is_comparison_operator() => {
                on.map_or(left, |on| on.labels().labels.iter().cloned().collect())
            }
            _ => left,
        }
    }

    fn known(&mut self, labels: &[String], of: &Labels) {
        for label in labels.iter().filter(|label| !of.contains(*label)) {
            self.wrong.push(format!("no label '{label}' in {of:?}"));
        }
    }
}

/// What stands between `before` and `after`, each time.
fn between<'a>(text: &'a str, before: &str, after: &str) -> Vec<&'a str> {
    let parts = text.split(before).skip(1);
    parts.map(|part| part.split(after).next().unwrap_or_default().trim()).collect()
}

#[test]
fn a_wrong_query_is_found() {
    let good = "sum by (device) (rate(mrscope_mr_registered_bytes_total[$__rate_interval]))";
    assert_eq!(Query::check(good, true).0.wrong, Vec::<String>::new());
    for (wrong, why) in [
        ("sum(mrscope_mr_active", "parse"),
        ("mrscope_mr_gone", "not in the catalogue"),
        ("mrscope_mr_active{pid=\"1\"}", "no label 'pid'"),
        ("sum by (comm) (mrscope_mr_active)", "no label 'comm'"),
        ("mrscope_mr_registered_bytes_total", "only rises"),
        ("rate(mrscope_mr_registered_bytes_total[5m])", "only rises"),
        ("mrscope_mr_active / mrscope_umem_pinned_bytes", "never matches"),
        ("histogram_quantile(0.5, mrscope_mr_active)", "no le"),
    ] {
        let found = Query::check(wrong, true).0.wrong.join("; ").to_lowercase();
        let known = found.contains(why) || (why == "parse" && !found.is_empty());
        assert!(known, "{wrong}: found '{found}', expected '{why}'");
    }
}

// ---- dashboards

fn dashboards() -> Vec<(String, Value)> {
    let parse = |name: String| {
        let json = serde_json::from_str(&read(&name)).unwrap_or_else(|e| panic!("{name}: {e}"));
        (name, json)
    };
    files("dashboards", "json").into_iter().map(parse).collect()
}

/// The panels that show something, each with words for a message.
fn panels(dashboard: &Value) -> Vec<(String, &Value)> {
    let named = |panel| (format!("panel '{}'", text(panel, "title")), panel);
    let shown = list(dashboard, "panels").iter().filter(|panel| text(panel, "type") != "row");
    shown.map(named).collect()
}

#[test]
fn every_panel_asks_only_for_what_the_catalogue_has() {
    for (_, dashboard) in dashboards() {
        for (name, panel) in panels(&dashboard) {
            for target in list(panel, "targets") {
                let expression = text(target, "expr");
                let (query, labels) = Query::check(expression, true);
                assert!(query.wrong.is_empty(), "{name}: {:?} in {expression}", query.wrong);
                for matchers in &query.selectors {
                    for label in TARGET {
                        let value = format!("${label}");
                        let chosen = matchers.find_matchers(label).iter().any(|matcher| {
                            matches!(matcher.op, MatchOp::Re(_)) && matcher.value == value
                        });
                        assert!(chosen, "{name}: no {label}=~\"{value}\" in {expression}");
                    }
                }
                for label in between(text(target, "legendFormat"), "{{", "}}") {
                    assert!(labels.contains(label), "{name}: {expression} yields no '{label}'");
                }
                let instant = target["instant"] == true;
                let whole = expression.contains("$__range");
                assert!(instant || !whole, "{name}: $__range at each point of {expression}");
            }
        }
    }
}

#[test]
fn a_table_names_columns_that_its_query_yields() {
    for (_, dashboard) in dashboards() {
        for (name, panel) in panels(&dashboard) {
            for step in list(panel, "transformations") {
                let (_, mut labels) = Query::check(text(&panel["targets"][0], "expr"), true);
                labels.extend(["Time", "Value", "__name__"].map(Into::into));
                let options = &step["options"];
                let columns = ["excludeByName", "renameByName"].map(|key| options[key].as_object());
                let mut known: Labels =
                    columns.into_iter().flatten().flat_map(|c| c.keys().cloned()).collect();
                known.extend(list(options, "sort").iter().map(|by| text(by, "field").to_owned()));
                assert!(known.is_subset(&labels), "{name}: {known:?} of {labels:?}");
            }
        }
    }
}

#[test]
fn every_panel_tells_what_it_shows() {
    for (_, dashboard) in dashboards() {
        for (name, panel) in panels(&dashboard) {
            assert!(!text(panel, "title").is_empty(), "{panel}");
            assert!(
                text(panel, "description").ends_with('.'),
                "{name}: a description is sentences"
            );
            assert!(!text(&panel["fieldConfig"]["defaults"], "unit").is_empty(), "{name}: no unit");
            assert!(!list(panel, "targets").is_empty(), "{name}: no query");
            let kinds = ["timeseries", "stat", "bargauge", "table"];
            assert!(kinds.contains(&text(panel, "type")), "{name}: {}", panel["type"]);
            assert_eq!(panel["datasource"]["uid"], "${datasource}", "{name}");
            let kinds: Labels =
                list(panel, "targets").iter().map(|t| text(t, "refId").into()).collect();
            assert_eq!(kinds.len(), list(panel, "targets").len(), "{name}: a refId is there twice");
        }
    }
}

#[test]
fn no_panel_covers_another() {
    for (file, dashboard) in dashboards() {
        let (mut ids, mut taken) = (BTreeSet::new(), BTreeMap::new());
        for panel in list(&dashboard, "panels") {
            let title = text(panel, "title");
            assert!(
                ids.insert(panel["id"].as_u64().unwrap()),
                "{file}: the id of '{title}' is taken"
            );
            let side = |key: &str| panel["gridPos"][key].as_u64().unwrap();
            assert!(side("x") + side("w") <= 24, "{file}: '{title}' is wider than the grid");
            for cell in (side("x")..side("x") + side("w"))
                .flat_map(|x| (side("y")..side("y") + side("h")).map(move |y| (x, y)))
            {
                let other = taken.insert(cell, title);
                assert!(
                    other.is_none(),
                    "{file}: '{title}' covers '{}'",
                    other.unwrap_or_default()
                );
            }
        }
    }
}

#[test]
fn a_dashboard_fits_every_grafana() {
    let mut uids = BTreeSet::new();
    for (file, dashboard) in dashboards() {
        assert!(uids.insert(text(&dashboard, "uid").to_owned()), "{file}: its uid is taken");
        assert_eq!(
            text(&dashboard, "uid"),
            Path::new(&file).file_stem().unwrap().to_str().unwrap()
        );
        assert_eq!(dashboard["id"], Value::Null, "{file}: an id is of one Grafana alone");
        assert_eq!(dashboard["editable"], false, "{file}");
        assert!(dashboard["schemaVersion"].as_u64().unwrap() >= 39, "{file}");
        let variables = list(&dashboard["templating"], "list");
        let variable =
            |name: &str| variables.iter().find(|variable| variable["name"] == name).unwrap();
        let source = variable("datasource");
        assert_eq!((text(source, "type"), text(source, "label")), ("datasource", "Data source"));
        assert_eq!(text(source, "query"), "prometheus");
        for name in TARGET {
            let variable = variable(name);
            assert_eq!(
                (text(variable, "type"), text(variable, "allValue")),
                ("query", ".+"),
                "{name}"
            );
            assert_eq!(
                (&variable["multi"], &variable["refresh"]),
                (&true.into(), &2.into()),
                "{name}"
            );
            assert_eq!(variable["datasource"]["uid"], "${datasource}", "{name}");
            let metric = between(text(variable, "definition"), "label_values(", ",")[0];
            assert!(series(metric.split('{').next().unwrap()).is_some(), "{name}: {metric}");
        }
    }
}

// ---- rules

fn yaml(name: &str) -> Value {
    serde_yaml_ng::from_str(&read(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn alerts() -> Vec<Value> {
    let mut found = Vec::new();
    for file in files("dashboards/rules", "yaml") {
        for group in list(&yaml(&file), "groups") {
            found.extend(list(group, "rules").iter().cloned());
        }
    }
    found
}

fn promtool(arguments: &[&str], files: &[String]) -> (bool, String) {
    let output = Command::new("promtool")
        .args(arguments)
        .args(files)
        .current_dir(root())
        .output()
        .expect("promtool is installed by scripts/need.sh test");
    let said = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&said).into_owned())
}

#[test]
fn promtool_finds_the_rules_right_and_their_tests_pass() {
    let (good, said) = promtool(&["check", "rules"], &files("dashboards/rules", "yaml"));
    assert!(good, "{said}");
    let (good, said) = promtool(&["test", "rules"], &files("tests/rules", "yaml"));
    assert!(good, "{said}");
}

#[test]
fn every_alert_is_tested_to_fire_and_to_be_silent() {
    let mut tested = BTreeSet::new();
    for file in files("tests/rules", "yaml") {
        for test in list(&yaml(&file), "tests") {
            for case in list(test, "alert_rule_test") {
                let fires = !list(case, "exp_alerts").is_empty();
                tested.insert((text(case, "alertname").to_owned(), fires));
            }
        }
    }
    let expected: BTreeSet<_> = alerts()
        .iter()
        .flat_map(|alert| [false, true].map(|fires| (text(alert, "alert").to_owned(), fires)))
        .collect();
    assert_eq!(tested, expected);
}

#[test]
fn every_alert_tells_what_to_do() {
    let runbook = read("docs/runbook.md");
    let sections: Vec<&str> = runbook.lines().filter_map(|line| line.strip_prefix("## ")).collect();
    let alerts = alerts();
    let names: Vec<&str> = alerts.iter().map(|alert| text(alert, "alert")).collect();
    assert_eq!(sections, names, "the runbook has one section for each alert, in their order");
    for alert in &alerts {
        let (name, notes) = (text(alert, "alert"), &alert["annotations"]);
        let severities = ["critical", "warning", "info"];
        assert!(severities.contains(&text(&alert["labels"], "severity")), "{name}");
        assert!(name.starts_with("Mrscope") && name.chars().all(char::is_alphanumeric), "{name}");
        assert!(!text(alert, "for").is_empty(), "{name}: no 'for'");
        assert!(text(notes, "summary").ends_with('.'), "{name}: a summary is a sentence");
        assert!(text(notes, "description").ends_with('.'), "{name}: a description is sentences");
        let section = format!("docs/runbook.md#{}", name.to_lowercase());
        assert_eq!(text(notes, "runbook_url"), section, "{name}");
        let (query, labels) = Query::check(text(alert, "expr"), false);
        let tells = TARGET.iter().all(|label| labels.contains(*label));
        assert!(tells, "{name} does not tell which host");
        assert!(query.wrong.is_empty(), "{name}: {:?}", query.wrong);
        for note in ["summary", "description"] {
            for label in between(text(notes, note), "$labels.", "}}") {
                assert!(labels.contains(label), "{name}: {note} names '{label}' of {labels:?}");
            }
        }
    }
}

#[test]
fn the_runbook_s_queries_are_right() {
    let runbook = read("docs/runbook.md");
    for line in runbook.lines().filter(|line| line.contains("mrscope_") && !line.contains('`')) {
        let (mut query, _) = Query::check(line, false);
        // Who looks at it now may want the count.
        query.wrong.retain(|wrong| !wrong.contains("only rises"));
        assert!(query.wrong.is_empty(), "{line}: {:?}", query.wrong);
    }
}
