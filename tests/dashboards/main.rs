//! What is made of the metrics: the dashboard and the alert rules name only what the catalogue has,
//! follow Grafana's and Prometheus' customs, and promtool finds the rules right in both directions.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod fleet;
mod promql;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use mrscope::model::Cause;
use mrscope::probe::{NoReport, Reason};
use promql_parser::label::MatchOp;
use serde_json::Value;

use promql::{Labels, Query, TARGET, series};

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
        ("mrscope_mr_registered_bytes_total - mrscope_mr_active_bytes", "only rises"),
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
                let targets = list(panel, "targets");
                let mut labels: Labels = targets
                    .iter()
                    .flat_map(|target| Query::check(text(target, "expr"), true).1)
                    .chain(["Time", "__name__"].map(Into::into))
                    .collect();
                // Values of several queries are told apart by these.
                labels.extend(targets.iter().map(|target| match targets.len() {
                    1 => "Value".to_owned(),
                    _ => format!("Value #{}", text(target, "refId")),
                }));
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
        let stem = Path::new(&file).file_stem().unwrap().to_str().unwrap();
        let uid = if stem == "mrscope" { stem.to_owned() } else { format!("mrscope-{stem}") };
        assert_eq!(text(&dashboard, "uid"), uid);
        assert!(list(&dashboard, "tags").contains(&"mrscope".into()), "{file}: no link finds it");
        let link = &dashboard["links"][0];
        assert_eq!((text(link, "type"), &link["tags"]), ("dashboards", &["mrscope"][..].into()));
        assert_eq!((&link["includeVars"], &link["keepTime"]), (&true.into(), &true.into()));
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
    rules().into_iter().filter(|rule| rule.get("record").is_none()).collect()
}

/// The expression of an alert, with those in it of the names that rules record.
fn expression(alert: &Value) -> String {
    let recorded = rules().into_iter().filter(|rule| rule.get("record").is_some());
    recorded.fold(text(alert, "expr").to_owned(), |expression, rule| {
        expression.replace(text(&rule, "record"), &format!("({})", text(&rule, "expr")))
    })
}

fn rules() -> Vec<Value> {
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
        let (query, labels) = Query::check(&expression(alert), false);
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
fn the_runbook_has_every_result_of_the_write_probe_once() {
    let runbook = read("docs/runbook.md");
    let (_, section) = runbook.split_once("\n# Results of the write probe\n").unwrap();
    let rows = section.split("\n# ").next().unwrap().lines();
    let told: Vec<&str> =
        rows.filter_map(|row| row.strip_prefix("| `")?.split('`').next()).skip(1).collect();
    let source = read("src/collector/probing/rounds.rs");
    let skipped: Labels = between(&source, "\"skipped_", "\"")
        .into_iter()
        .map(|why| format!("skipped_{why}"))
        .collect();
    assert!(skipped.len() > 3, "{skipped:?}");
    let reasons = Reason::ALL.iter().map(|reason| reason.word());
    let words = reasons.chain(NoReport::WORDS).chain(["ok"]).map(Into::into);
    assert_eq!(
        told.iter().map(|word| (*word).to_owned()).collect::<Labels>(),
        words.chain(skipped).collect()
    );
    let once: BTreeSet<_> = told.iter().collect();
    assert_eq!(once.len(), told.len(), "{told:?}");
}

#[test]
fn the_runbook_tells_each_cause_once_in_the_words_of_the_status_page() {
    let runbook = read("docs/runbook.md");
    let (_, section) = runbook.split_once("\n# Causes\n").unwrap();
    let (section, _) = section.split_once("\n# ").unwrap();
    let mut told: Vec<&str> = section.lines().filter(|line| line.starts_with("| `")).collect();
    told.retain(|line| *line != "| `cause` | what happened | what helps |");
    let row = |cause: Cause| {
        format!("| `{}` | {} | {} |", cause.label(), cause.meaning(), cause.remedy())
    };
    let mut expected = Cause::ALL.map(row);
    told.sort_unstable();
    expected.sort_unstable();
    assert_eq!(told, expected);
}

#[test]
fn the_alert_that_goes_by_causes_names_each_of_them() {
    let rules = read("dashboards/rules/alerts.yaml");
    let (_, alert) = rules.split_once("- alert: MrscopeRegistrationsFail\n").unwrap();
    let (alert, _) = alert.split_once("- alert:").unwrap();
    let (_, causes) = alert.split_once("cause=~\"").unwrap();
    let (causes, rest) = causes.split_once('"').unwrap();
    // Of the last there is nothing to say.
    for cause in causes.split('|').filter(|cause| *cause != Cause::Other.label()) {
        assert!(rest.contains(&format!("{cause}: ")), "{cause} is not explained");
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
