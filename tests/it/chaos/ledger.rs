//! What the API has answered for each tenant, and so what must exist, or may exist, at the next request.
//!
//! An answer is a promise: 2xx is there, a problem changed nothing. A request that got no answer is wholly there or
//! not at all. Most tenants have one writer each, so that what may be there is known exactly; one is written by all,
//! where the generation shows who was last.

use std::collections::BTreeMap;

use serde_json::{Value, json};

/// The tenant that all writers write.
pub(super) const SHARED: &str = "shared";

/// What a writer asks for.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Spec {
    pub(super) daemon: &'static str,
    pub(super) limit_mib: u64,
    pub(super) tenths: u64,
    pub(super) max_clients: u64,
    pub(super) below_normal: bool,
    pub(super) uid: u32,
    /// Tells one write from all others.
    pub(super) mark: u64,
}

/// What became of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TransactionEnd {
    /// Done, and answered with this generation; deletions have none.
    Done(Option<i64>),
    Refused,
    /// Nobody was there to take it.
    Unreached,
    /// No answer came.
    Unknown,
}

#[derive(Debug, Default)]
pub(super) struct Ledger {
    /// Specs that nobody writes after the beginning, as they were acknowledged then: tenants, and daemons.
    given: BTreeMap<String, Value>,
    daemons: BTreeMap<String, Value>,
    own: BTreeMap<String, Vec<Option<Spec>>>,
    shared: Shared,
    generations: BTreeMap<String, i64>,
}

#[derive(Debug, Default)]
struct Shared {
    done: BTreeMap<i64, Spec>,
    unknown: Vec<Spec>,
}

impl Spec {
    pub(super) fn json(&self) -> Value {
        #[allow(clippy::cast_precision_loss, reason = "at most 1000")]
        let percentage = self.tenths as f64 / 10.0;
        json!({
            "daemon": self.daemon,
            "uid": self.uid,
            "device_memory_limit": self.limit_mib << 20,
            "active_thread_percentage": percentage,
            "max_clients": self.max_clients,
            "priority": if self.below_normal { "below_normal" } else { "normal" },
            "labels": {"write": self.mark.to_string()},
        })
    }

    /// Whether this is, in every field, what the API shows.
    fn is(&self, shown: &Value) -> bool {
        let wanted = self.json();
        let fields = wanted.as_object().expect("an object");
        fields.iter().all(|(field, value)| {
            if value.is_f64() { shown[field].as_f64() == value.as_f64() } else { shown[field] == *value }
        })
    }
}

impl Ledger {
    /// Notes a tenant that nobody writes from here on.
    pub(super) fn given(&mut self, name: &str, spec: &Value) {
        self.given.insert(name.to_owned(), spec.clone());
    }

    /// Notes a daemon whose spec nobody writes from here on.
    pub(super) fn given_daemon(&mut self, name: &str, spec: &Value) {
        self.daemons.insert(name.to_owned(), spec.clone());
    }

    /// Compares a daemon's spec with what was acknowledged.
    pub(super) fn check_daemon(&self, name: &str, shown: &Value) {
        assert_eq!(Some(shown), self.daemons.get(name), "the spec of daemon {name}, which nobody wrote");
    }

    /// Notes what became of a write; `None` deletes.
    pub(super) fn note(&mut self, name: &str, spec: Option<Spec>, fate: TransactionEnd) {
        if name == SHARED {
            return self.note_shared(spec.expect("it is never deleted"), fate);
        }
        let may = self.own.entry(name.to_owned()).or_insert_with(|| vec![None]);
        match fate {
            TransactionEnd::Done(_) => *may = vec![spec],
            TransactionEnd::Refused | TransactionEnd::Unreached => {}
            TransactionEnd::Unknown if may.contains(&spec) => {}
            TransactionEnd::Unknown => may.push(spec),
        }
    }

    fn note_shared(&mut self, spec: Spec, fate: TransactionEnd) {
        match fate {
            TransactionEnd::Done(generation) => {
                let generation = generation.expect("a write has a generation");
                let before = self.shared.done.insert(generation, spec.clone());
                assert!(
                    before.is_none(),
                    "two writes were answered with generation {generation}: {before:?}, {spec:?}"
                );
            }
            TransactionEnd::Refused | TransactionEnd::Unreached => {}
            TransactionEnd::Unknown => self.shared.unknown.push(spec),
        }
    }

    /// Whether a tenant may be there.
    pub(super) fn names(&self) -> Vec<String> {
        let there = self.own.iter().filter(|(_, may)| may.iter().any(Option::is_some));
        there.map(|(name, _)| name.clone()).collect()
    }

    /// Compares with what is there: all tenants by name. What may have been is known from here on.
    pub(super) fn check(&mut self, tenants: &BTreeMap<String, Value>) {
        for name in tenants.keys() {
            let known = self.own.contains_key(name) || name == SHARED || self.given.contains_key(name);
            assert!(known, "tenant {name} is there, and nobody has written it");
        }
        for (name, spec) in &self.given {
            let shown = tenants.get(name).unwrap_or_else(|| panic!("tenant {name} is lost"));
            assert_eq!(&shown["spec"], spec, "the spec of tenant {name}, which nobody wrote");
        }
        for (name, may) in &mut self.own {
            let shown = tenants.get(name).map(|tenant| &tenant["spec"]);
            let fits = |spec: &Option<Spec>| match (spec, shown) {
                (None, None) => true,
                (Some(spec), Some(shown)) => spec.is(shown),
                _ => false,
            };
            let found = may.iter().find(|spec| fits(spec)).cloned();
            let found =
                found.unwrap_or_else(|| panic!("tenant {name} is {shown:?} and may only be one of {may:?}"));
            *may = vec![found];
        }
        self.check_shared(tenants.get(SHARED));
        for (name, tenant) in tenants {
            let generation = tenant["generation"].as_i64().expect("a generation");
            let key = format!("tenant {name} since {}", tenant["created_at"]);
            self.never_back(&key, generation);
        }
    }

    fn check_shared(&mut self, tenant: Option<&Value>) {
        let Shared { done, unknown } = &mut self.shared;
        let Some(tenant) = tenant else {
            assert!(done.is_empty(), "the shared tenant is lost");
            return;
        };
        let generation = tenant["generation"].as_i64().expect("a generation");
        let shown = &tenant["spec"];
        if let Some((last, spec)) = done.last_key_value() {
            assert!(*last <= generation, "generation {last} was answered, and {generation} is there");
            if *last == generation {
                assert!(spec.is(shown), "generation {generation} was answered as {spec:?} and is {shown}");
            }
        }
        done.entry(generation).or_insert_with(|| {
            let spec = unknown.iter().find(|spec| spec.is(shown)).cloned();
            spec.unwrap_or_else(|| panic!("nobody wrote generation {generation}: {shown}"))
        });
        done.retain(|known, _| *known == generation);
        unknown.clear();
    }

    /// Remembers a generation, which must not be smaller than it was.
    pub(super) fn never_back(&mut self, of: &str, generation: i64) {
        let before = self.generations.insert(of.to_owned(), generation).unwrap_or(0);
        assert!(before <= generation, "the generation of {of} went back from {before} to {generation}");
    }
}
