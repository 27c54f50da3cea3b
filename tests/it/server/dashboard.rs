//! The Grafana dashboard: it asks for nothing but what is served, and every panel says what it shows.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use serde_json::{Value, json};

use super::metrics::{Entry, catalogue, missing};

const DASHBOARD: &str = include_str!("../../../deploy/grafana/mps-manager.json");

/// The labels that Prometheus adds to every sample.
const ADDED: [&str; 2] = ["instance", "job"];

/// Words of `PromQL`, and of Grafana's queries for variables, that are followed by labels in parentheses.
const GROUPING: [&str; 6] = ["by", "without", "on", "ignoring", "group_left", "group_right"];

/// The other words of `PromQL` that the dashboard uses: a new one is added here, a misspelt metric is not among them.
const FUNCTIONS: [&str; 8] =
    ["sum", "count", "min", "rate", "increase", "clamp_min", "histogram_quantile", "time"];

/// A word of an expression, or any other character.
#[derive(Debug, PartialEq, Eq)]
enum Token {
    Word(String),
    Sign(char),
}

/// The words and signs of an expression, without text in quotes and ranges in brackets.
fn tokens(expression: &str) -> Vec<Token> {
    let mut tokens = Vec::new();
    let mut letters = expression.chars().peekable();
    while let Some(letter) = letters.next() {
        let end = match letter {
            '"' => Some('"'),
            '[' => Some(']'),
            _ => None,
        };
        if let Some(end) = end {
            assert!(letters.any(|letter| letter == end), "{expression}: no {end}");
        } else if letter.is_ascii_alphabetic() || letter == '_' {
            let mut word = String::from(letter);
            while let Some(next) = letters.next_if(|next| next.is_ascii_alphanumeric() || *next == '_') {
                word.push(next);
            }
            tokens.push(Token::Word(word));
        } else if !letter.is_whitespace() {
            tokens.push(Token::Sign(letter));
        }
    }
    tokens
}

/// The metrics of an expression, each with the labels that select its samples, and the labels that it groups or joins by.
#[derive(Debug, Default)]
struct Query {
    selected: Vec<(String, Vec<String>)>,
    grouped: Vec<String>,
}

impl Query {
    fn parse(expression: &str) -> Self {
        let mut query = Self::default();
        let mut rest = tokens(expression).into_iter().peekable();
        while let Some(token) = rest.next() {
            let Token::Word(word) = token else { continue };
            let is_grouping = GROUPING.contains(&word.as_str());
            let end = match rest.peek() {
                Some(Token::Sign('(')) if is_grouping => ')',
                Some(Token::Sign('{')) => '}',
                _ if is_grouping || FUNCTIONS.contains(&word.as_str()) => continue,
                _ => {
                    query.selected.push((word, Vec::new()));
                    continue;
                }
            };
            let inside = rest.by_ref().take_while(|token| *token != Token::Sign(end));
            let labels: Vec<String> = inside
                .filter_map(|token| match token {
                    Token::Word(label) => Some(label),
                    Token::Sign(_) => None,
                })
                .collect();
            if is_grouping {
                query.grouped.extend(labels);
            } else {
                query.selected.push((word, labels));
            }
        }
        assert!(!query.selected.is_empty(), "{expression}: no metric");
        query
    }

    /// Checks the names against the catalogue; returns the labels that samples of each metric have.
    fn labels(&self, expression: &str, catalogue: &BTreeMap<String, Entry>) -> Vec<BTreeSet<&'static str>> {
        let mut all = Vec::new();
        for (metric, selected) in &self.selected {
            let labels = labels_of(metric, catalogue)
                .unwrap_or_else(|| panic!("{expression}: docs/metrics.md has no {metric}"));
            for label in selected {
                assert!(labels.contains(label.as_str()), "{expression}: {metric} has no label {label}");
            }
            all.push(labels);
        }
        for label in &self.grouped {
            let known = all.iter().any(|labels| labels.contains(label.as_str()));
            assert!(known, "{expression}: none of its metrics has the label {label}");
        }
        all
    }
}

/// The labels that the samples of a metric have; `None` if no such samples are served.
fn labels_of(metric: &str, catalogue: &BTreeMap<String, Entry>) -> Option<BTreeSet<&'static str>> {
    let series = ["_bucket", "_sum", "_count"];
    let histogram = series.iter().find_map(|end| catalogue.get(metric.strip_suffix(end)?));
    let histogram = histogram.filter(|entry| entry.kind == "histogram");
    let entry = histogram.or_else(|| catalogue.get(metric).filter(|entry| entry.kind != "histogram"))?;
    let bound = metric.ends_with("_bucket").then_some("le");
    Some(entry.labels.iter().copied().chain(ADDED).chain(bound).collect())
}

fn dashboard() -> Value {
    serde_json::from_str(DASHBOARD).expect("JSON")
}

fn array<'v>(value: &'v Value, field: &str) -> &'v Vec<Value> {
    value[field].as_array().unwrap_or_else(|| panic!("{field} is no array"))
}

fn text<'v>(value: &'v Value, field: &str) -> &'v str {
    value[field].as_str().unwrap_or_else(|| panic!("{field} is no text in {value}"))
}

/// The expressions of all panels.
fn expressions(dashboard: &Value) -> Vec<&str> {
    let panels = array(dashboard, "panels").iter().filter(|panel| panel["type"] != "row");
    panels.flat_map(|panel| array(panel, "targets")).map(|target| text(target, "expr")).collect()
}

#[test]
fn dashboard_asks_only_for_served_metrics() {
    let (dashboard, catalogue) = (dashboard(), catalogue());
    for expression in expressions(&dashboard) {
        let query = Query::parse(expression);
        let labels = query.labels(expression, &catalogue);
        // What is chosen above the panels holds for every metric that it could select.
        for ((metric, selected), labels) in query.selected.iter().zip(labels) {
            for label in ["instance", "gpu", "tenant"].iter().filter(|label| labels.contains(*label)) {
                assert!(selected.iter().any(|one| one == label), "{expression}: {metric} ignores ${label}");
                let matcher = format!("{label}=~\"${label}\"");
                assert!(expression.contains(&matcher), "{expression}: no {matcher}");
            }
        }
    }
    for variable in array(&dashboard["templating"], "list").iter().skip(1) {
        let query = text(&variable["query"], "query");
        assert_eq!(query, text(variable, "definition"));
        let inside = query.strip_prefix("label_values(").and_then(|rest| rest.strip_suffix(')'));
        let (expression, label) = inside.and_then(|inside| inside.rsplit_once(", ")).expect("two arguments");
        let labels = Query::parse(expression).labels(expression, &catalogue);
        assert!(labels[0].contains(label), "{query}");
    }
}

#[test]
fn dashboard_panels_are_complete() {
    let dashboard = dashboard();
    let uid = &dashboard["uid"];
    assert!(uid == "mps-manager" && dashboard["id"].is_null(), "{uid}");
    // An export's inputs cannot be provisioned from a file.
    assert!(dashboard.get("__inputs").is_none() && !DASHBOARD.contains("${DS_"));
    let variables: Vec<&str> =
        array(&dashboard["templating"], "list").iter().map(|variable| text(variable, "name")).collect();
    assert_eq!(variables, ["datasource", "instance", "gpu", "tenant"]);
    let source = json!({"type": "prometheus", "uid": "${datasource}"});
    let (mut ids, mut titles, mut rows) = (BTreeSet::new(), BTreeSet::new(), Vec::new());
    let mut taken = BTreeSet::new();
    for panel in array(&dashboard, "panels") {
        let title = text(panel, "title");
        assert!(ids.insert(panel["id"].as_u64().expect("an ID")), "{title}: its ID is another's too");
        assert!(titles.insert(title), "{title} twice");
        let [x, y, w, h] =
            ["x", "y", "w", "h"].map(|field| panel["gridPos"][field].as_u64().expect("a number"));
        assert!(x + w <= 24, "{title} is too wide");
        for cell in (x..x + w).flat_map(|column| (y..y + h).map(move |line| (column, line))) {
            assert!(taken.insert(cell), "{title} covers another panel");
        }
        if panel["type"] == "row" {
            rows.push(title);
            continue;
        }
        assert!(text(panel, "description").ends_with('.'), "{title}");
        assert!(!text(&panel["fieldConfig"]["defaults"], "unit").is_empty(), "{title}");
        assert_eq!(panel["datasource"], source, "{title}");
        assert!(!array(panel, "targets").is_empty(), "{title}");
        for target in array(panel, "targets") {
            assert_eq!(target["datasource"], source, "{title}");
            assert!(!text(target, "legendFormat").is_empty(), "{title}");
        }
    }
    assert_eq!(rows, ["Capacity", "Limits against use", "Clients", "Incidents", "Control plane"]);
}

/// Runs promtool on a file.
fn checked(arguments: &[&str], file: &std::path::Path) {
    let Ok(output) = Command::new("promtool").args(arguments).arg(file).output() else {
        return missing("promtool");
    };
    let printed = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&printed));
}

#[test]
fn dashboard_expressions_are_valid_promql() {
    let dashboard = dashboard();
    // As recording rules, since that is what promtool checks; Grafana fills in the interval.
    let rules: Vec<Value> = expressions(&dashboard)
        .iter()
        .enumerate()
        .map(|(number, expression)| {
            json!({"record": format!("panel:{number}"), "expr": expression.replace("$__rate_interval", "5m")})
        })
        .collect();
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("rules.yml");
    // JSON is YAML.
    let text = json!({"groups": [{"name": "dashboard", "rules": rules}]}).to_string();
    std::fs::write(&file, text).expect("written");
    checked(&["check", "rules"], &file);
}

#[test]
fn documented_prometheus_configuration_is_valid() {
    let page = include_str!("../../../docs/integrate/prometheus.md");
    let block = page.split_once("<!-- example: prometheus -->\n```yaml\n").expect("an example").1;
    let (example, _) = block.split_once("```").expect("an end");
    let directory = tempfile::tempdir().expect("a directory");
    let here = directory.path().display().to_string();
    std::fs::write(directory.path().join("mps-manager.token"), "token").expect("written");
    std::fs::write(
        directory.path().join("mps-manager-rules.yml"),
        include_str!("../../../deploy/prometheus-rules.yml"),
    )
    .expect("written");
    let file = directory.path().join("prometheus.yml");
    std::fs::write(&file, example.replace("/etc/prometheus", &here)).expect("written");
    checked(&["check", "config"], &file);
}
