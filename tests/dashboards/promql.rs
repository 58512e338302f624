//! Walks an expression of PromQL: what its result is told apart by, and what the catalogue has not.

use std::collections::BTreeSet;
use std::time::Duration;

use mrscope::metrics::{self, Kind, Metric};
use promql_parser::label::Matchers;
use promql_parser::parser::{
    self, AggregateExpr, BinaryExpr, Call, Expr, LabelModifier, VectorMatchCardinality,
    VectorSelector, value::ValueType,
};

/// What tells processes apart unless it is configured otherwise.
const PROCESS: [&str; 2] = ["pid", "comm"];

/// What a scrape adds to every series.
pub const TARGET: [&str; 2] = ["job", "instance"];

/// Stand-ins for Grafana's variables, which are no durations yet.
const RATE_INTERVAL: Duration = Duration::from_mins(7);
const RANGE: Duration = Duration::from_mins(11);

pub type Labels = BTreeSet<String>;

/// A series name taken apart: its metric's labels, and whether it only rises.
pub fn series(name: &str) -> Option<(Vec<&'static str>, bool)> {
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

/// In place of a function: the difference of two series of one counter.
const LESS: &str = "-";

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
pub struct Query {
    pub wrong: Vec<String>,
    pub selectors: Vec<Matchers>,
    /// Whether the ranges are Grafana's.
    dashboard: bool,
}

impl Query {
    pub fn check(expression: &str, dashboard: bool) -> (Self, Labels) {
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
            Expr::Call(call) => self.call(call),
            Expr::Aggregate(aggregate) => self.aggregate(aggregate),
            Expr::Binary(binary) => self.join(binary),
            Expr::Paren(paren) => self.walk(&paren.expr),
            Expr::Unary(unary) => self.walk(&unary.expr),
            Expr::Subquery(subquery) => self.walk(&subquery.expr),
            _ => Labels::new(),
        }
    }

    fn call(&mut self, call: &Call) -> Labels {
        let mut labels = Labels::new();
        for argument in &call.args.args {
            labels.append(&mut match &**argument {
                Expr::MatrixSelector(matrix) => {
                    self.select(&matrix.vs, Some((call.func.name, matrix.range)))
                }
                other => self.walk(other),
            });
        }
        match call.func.name {
            "histogram_quantile" if !labels.remove("le") => {
                self.wrong.push("histogram_quantile of what has no le".into());
            }
            "label_replace" => {
                if let Some(Expr::StringLiteral(new)) = call.args.args.get(1).map(|name| &**name) {
                    labels.insert(new.val.clone());
                }
            }
            _ => {}
        }
        labels
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
            Some((LESS, _)) => true,
            Some((function, range)) if self.dashboard => reads_counters(function, range),
            // The last, for what is a failure at first sight.
            Some((function, _)) => matches!(function, "rate" | "increase" | "max_over_time"),
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
        let (mut left, right) = match (&*binary.lhs, &*binary.rhs) {
            // What came less what went, of one counter, is no counter.
            (Expr::VectorSelector(came), Expr::VectorSelector(went))
                if binary.op.to_string() == "-" && came.name == went.name =>
            {
                let less = Some((LESS, Duration::ZERO));
                (self.select(came, less), self.select(went, less))
            }
            (left, right) => (self.walk(left), self.walk(right)),
        };
        // A number, or time().
        match (binary.lhs.value_type(), binary.rhs.value_type()) {
            (_, ValueType::Scalar) => return left,
            (ValueType::Scalar, _) => return right,
            _ => {}
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
