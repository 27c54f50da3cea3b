//! Rows of the audit log as sentences: `gave tenant notebooks 20 GiB instead of 12 GiB`.

use std::fmt;

use serde_json::{Map, Value};

use super::changes::{fields, in_units, listed, plain, share_words, words};
use super::{AuditOutcome, AuditRecord, EXPIRE};
use crate::TenantName;
use crate::count::counted;
use crate::workload::Workload;

/// The action of a row in words, without its actor. A page links the object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Deed {
    /// The verb, such as `gave`.
    pub verb: String,
    /// The object, such as `tenant notebooks`; empty where the verb says it.
    pub object: String,
    /// The rest, such as `20 GiB instead of 12 GiB`; it may begin with a comma or a colon.
    pub rest: String,
}

/// End of the sentence of a change that a host file made.
pub(super) const WITH_HOST_FILE: &str = ", with the host file";

impl Deed {
    pub(super) fn new(verb: impl Into<String>, object: impl Into<String>, rest: impl Into<String>) -> Self {
        Self { verb: verb.into(), object: object.into(), rest: rest.into() }
    }

    /// Returns the rest with the space before it, unless it begins with a comma or a colon.
    pub fn tail(&self) -> String {
        let apart = if self.rest.is_empty() || self.rest.starts_with([',', ':']) { "" } else { " " };
        format!("{apart}{}", self.rest)
    }
}

impl fmt::Display for Deed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let apart = if self.object.is_empty() { "" } else { " " };
        write!(f, "{}{apart}{}{}", self.verb, self.object, self.tail())
    }
}

impl AuditRecord {
    /// Returns the row as a sentence. `user_name` gives the name of a user of the host by its number.
    pub fn sentence(&self, user_name: impl Fn(u32) -> Option<String>) -> String {
        format!("{} {}", actor_words(&self.actor, user_name), self.deed())
    }

    /// Returns the action with its object and what it changed, without the actor.
    pub fn deed(&self) -> Deed {
        let object = self.object();
        if self.outcome != AuditOutcome::Done {
            let words = self.action_words();
            let verb = words.split(' ').next().filter(|_| !object.is_empty()).unwrap_or(&words);
            let result =
                if self.outcome == AuditOutcome::Failed { ", which failed" } else { ", which was refused" };
            let why = self.problem_words().map(|problem| format!(": {problem}")).unwrap_or_default();
            return Deed::new(format!("tried to {verb}"), object, format!("{result}{why}"));
        }
        let after = fields(self.after.as_deref());
        if let Some(applied) = after.get("applied") {
            return self.applied(applied);
        }
        let is_verb = self.is_verb();
        let mut deed = match (self.kind(), self.before.is_none(), self.after.is_none()) {
            ("layouts", _, false) => {
                Deed::new("saved", format!("{object} v{}", plain(&after, "version")), "")
            }
            ("leases", true, false) => Deed::new("made", object, ""),
            ("leases", false, true) => Deed::new("ended", object, ""),
            ("tokens", false, false) => Deed::new("revoked", object, ""),
            (_, false, true) if self.action == EXPIRE => Deed::new("deleted", object, ", which had expired"),
            (_, true, false) if !is_verb => Deed::new("created", object, self.features(&after)),
            (_, false, true) if !is_verb => Deed::new("deleted", object, ""),
            (_, false, false) if !is_verb => self.edited(),
            _ => self.done(),
        };
        if self.action.ends_with("/host/spec") && !deed.object.is_empty() {
            deed.rest.push_str(WITH_HOST_FILE);
        }
        deed
    }

    /// Returns true if the row changed a spec, and not only requested that it be applied.
    pub fn changed_spec(&self) -> bool {
        self.before.is_some() || fields(self.after.as_deref()).keys().any(|field| field != "applied")
    }

    /// Returns the workload of the tenant that was created, changed or deleted.
    pub fn workload(&self) -> Option<Workload> {
        let spec = self.after.as_deref().or(self.before.as_deref());
        let labels = fields(spec).remove("labels")?;
        Workload::of(&serde_json::from_value(labels).ok()?)
    }

    /// Returns the kind of the target, in the plural: `tenants`, `leases`.
    pub(super) fn kind(&self) -> &str {
        let mut parts = self.target.split('/');
        let kind = parts.next().unwrap_or_default();
        if parts.nth(1) == Some("leases") { "leases" } else { kind }
    }

    /// Returns the name or the ID of the target; empty for a target without one.
    pub(super) fn name(&self) -> &str {
        let name = self.target.split('/').nth(1).unwrap_or_default();
        // A name that was not well-formed is recorded as the route has it.
        if name.starts_with('{') { "" } else { name }
    }

    /// Returns true if the action is a verb of its own, such as `cordon`, that says what was changed.
    fn is_verb(&self) -> bool {
        let verb =
            self.action.strip_prefix("POST ").and_then(|path| path.rsplit('/').next()).unwrap_or_default();
        !["", "edit", "new", "spec", "import"].contains(&verb) && !verb.ends_with('s')
    }

    /// Returns the target as people call it: `tenant web`, `a lease of tenant web`.
    fn object(&self) -> String {
        let name = self.name();
        let token_name = plain(&fields(self.after.as_deref().or(self.before.as_deref())), "name");
        let name = if self.kind() == "tokens" && !token_name.is_empty() { &token_name } else { name };
        let noun = match self.kind() {
            // Actions on none of them in particular.
            _ if ["adopt-lost", "import"].contains(&name) => return String::new(),
            "leases" => return format!("a lease of tenant {name}"),
            "tokens" => "token",
            "daemons" => "daemon",
            "tenants" => "tenant",
            "layouts" => "layout",
            "clients" => "client",
            "incidents" => "incident",
            "operations" => "operation",
            "replays" => "replay",
            "foreign-daemons" => "foreign daemon",
            "gpus" => "GPU",
            "hosts" => "host",
            "users" => "user",
            _ => return String::new(),
        };
        // Of a process the number is enough, and of an ID its beginning.
        let short = match noun {
            "client" | "foreign daemon" => name.split('-').next().unwrap_or(name),
            "operation" | "replay" => name.get(..8).unwrap_or(name),
            "GPU" => name.strip_prefix("GPU-").and_then(|rest| rest.get(..8)).unwrap_or(name),
            _ => name,
        };
        match short {
            "" => format!("a {noun}"),
            short => format!("{noun} {short}"),
        }
    }

    /// Describes a change of several fields, or of one.
    fn edited(&self) -> Deed {
        let changes = self.changes();
        match changes.as_slice() {
            [one] if one.field == "daemon" && one.before.is_some() => {
                let [from, to] = [&one.before, &one.after].map(|name| name.as_deref().unwrap_or("none"));
                Deed::new("moved", self.object(), format!("from {from} to {to}"))
            }
            [one]
                if self.kind() == "tenants"
                    && let Some(share) = one.as_share() =>
            {
                Deed::new("gave", self.object(), share)
            }
            _ => Deed::new("changed", self.object(), listed(&changes)),
        }
    }

    /// Describes what a created object has.
    fn features(&self, spec: &Map<String, Value>) -> String {
        let share = |field: &str| {
            let value = spec.get(field).filter(|value| !value.is_null())?;
            share_words(field, Some(&in_units(field, value)))
        };
        match self.kind() {
            "tokens" => format!("({})", plain(spec, "grant")),
            "daemons" => {
                let gpus = spec.get("gpus").and_then(Value::as_array).map_or(0, Vec::len);
                let mode = if plain(spec, "mode") == "static" { ", static" } else { "" };
                format!("on {}{mode}", counted(gpus, "GPU"))
            }
            "tenants" => {
                let shares = ["device_memory_limit", "active_thread_percentage", "sms", "max_clients"];
                let shares: Vec<String> = shares.into_iter().filter_map(share).collect();
                let with =
                    if shares.is_empty() { String::new() } else { format!(" with {}", shares.join(", ")) };
                let of = self.workload().map(|workload| format!(" for {workload}")).unwrap_or_default();
                format!("on {}{with}{of}", plain(spec, "daemon"))
            }
            _ => String::new(),
        }
    }

    /// Describes the application or the replay of a layout.
    fn applied(&self, applied: &Value) -> Deed {
        let text = |field: &str| applied.get(field).map(words).unwrap_or_default();
        let layout = format!("layout {} v{}", text("layout"), text("version"));
        let (verb, to) = if self.kind() == "replays" { ("replayed", "on") } else { ("applied", "to") };
        if self.kind() == "hosts" {
            return Deed::new("replayed", layout, format!("on {} of {}", text("daemon"), self.object()));
        }
        Deed::new(verb, layout, format!("{to} {}", text("daemon")))
    }

    /// Describes an action by its route.
    fn done(&self) -> Deed {
        let (words, object) = (self.action_words(), self.object());
        let (verb, noun) = words.split_once(' ').unwrap_or((&words, ""));
        let of_object = object.to_lowercase();
        let is_own =
            noun.rsplit(' ').next().is_some_and(|noun| of_object.split(' ').any(|word| word == noun));
        let verb = match words.as_str() {
            "adopt lost" if object.is_empty() => "adopted the lost daemons".to_owned(),
            "adopt lost" => return Deed::new("adopted", object, ""),
            "backup" => "backed up the database".to_owned(),
            "restore" => "restored the database".to_owned(),
            "confirm" | "confirm host" => "confirmed this host".to_owned(),
            "create login url" | "login url" => "created a login link".to_owned(),
            "delete session" | "end sessions" | "log out everywhere" => "ended the sessions".to_owned(),
            _ if is_own => return Deed::new(past(verb), object, ""),
            _ => format!("{} {noun}", past(verb)).trim_end().to_owned(),
        };
        // The verb is about something of the object: the sessions of a token.
        let verb = if object.is_empty() { verb } else { format!("{verb} of") };
        Deed::new(verb, object, "")
    }
}

/// Returns the actor of a row in words: the name of a user or a token, without IDs.
pub fn actor_words(actor: &str, user_name: impl Fn(u32) -> Option<String>) -> String {
    let token = actor.strip_prefix("token ").and_then(|rest| rest.split_once(" ("));
    let user = actor.strip_prefix("uid ").and_then(|uid| uid.parse().ok());
    match (token, user) {
        (Some((_, name)), _) => name.trim_end_matches(')').to_owned(),
        (None, Some(uid)) => user_name(uid).unwrap_or_else(|| format!("user {uid}")),
        (None, None) => match actor {
            "manager" => "the manager".to_owned(),
            "admin token" => "admin".to_owned(),
            "nobody" => "someone without credentials".to_owned(),
            actor => actor.to_owned(),
        },
    }
}

/// Returns the tenant of a lease's or a tenant's row.
pub(super) fn tenant_of(row: &AuditRecord) -> Option<TenantName> {
    TenantName::parse(row.name()).ok().filter(|_| ["tenants", "leases"].contains(&row.kind()))
}

/// Returns the past of a verb.
fn past(verb: &str) -> String {
    match verb {
        "set" => "set".to_owned(),
        "begin" => "began".to_owned(),
        "log" | "stop" | "cancel" => format!("{verb}{}ed", &verb[verb.len() - 1..]),
        "get" => "read".to_owned(),
        _ if verb.ends_with('e') => format!("{verb}d"),
        _ => match verb.strip_suffix('y') {
            Some(stem) if !stem.ends_with(['a', 'e', 'o']) => format!("{stem}ied"),
            _ => format!("{verb}ed"),
        },
    }
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::json;

    use super::*;

    /// Creates the row of something that was done.
    pub(in crate::audit) fn row(
        actor: &str,
        action: &str,
        target: &str,
        before: Option<Value>,
        after: Option<Value>,
    ) -> AuditRecord {
        let text = |spec: Option<Value>| spec.map(|spec| spec.to_string());
        let row = json!({
            "id": 1, "at": "2026-11-25T05:03:49.123Z", "actor": actor, "granted": "admin", "origin": "socket", "previous": "", "hash": "",
            "action": action, "target": target, "outcome": "done", "before": text(before), "after": text(after),
        });
        serde_json::from_value(row).expect("a row")
    }

    fn said(action: &str, target: &str, before: Option<Value>, after: Option<Value>) -> String {
        row("uid 7", action, target, before, after).sentence(|uid| (uid == 7).then(|| "ada".to_owned()))
    }

    pub(in crate::audit) const TENANT: &str = "PUT /api/v1/tenants/{name}";

    #[test]
    fn edits_of_tenants_are_in_units() {
        let edit = |before: Value, after: Value| said(TENANT, "tenants/web", Some(before), Some(after));
        for (before, after, words) in [
            (
                json!({ "device_memory_limit": 12_u64 << 30 }),
                json!({ "device_memory_limit": 20_u64 << 30 }),
                "gave tenant web 20 GiB instead of 12 GiB",
            ),
            (
                json!({}),
                json!({ "device_memory_limit": 512 << 20 }),
                "gave tenant web 512 MiB instead of no memory limit",
            ),
            (
                json!({ "device_memory_limit": 1 << 30 }),
                json!({}),
                "gave tenant web no memory limit instead of 1 GiB",
            ),
            (
                json!({ "active_thread_percentage": 25.0 }),
                json!({ "active_thread_percentage": 12.5 }),
                "gave tenant web 12.5 % of the threads instead of 25 %",
            ),
            (
                json!({ "max_clients": 4 }),
                json!({ "max_clients": 1 }),
                "gave tenant web at most 1 client instead of 4",
            ),
            (json!({ "daemon": "gpu0" }), json!({ "daemon": "gpu1" }), "moved tenant web from gpu0 to gpu1"),
            (
                json!({ "labels": { "team": "a" } }),
                json!({ "labels": { "team": "b" } }),
                "changed tenant web: label team b instead of a",
            ),
            (
                json!({ "sms": 16, "uid": 0 }),
                json!({ "sms": 32, "uid": 5 }),
                "changed tenant web: SMs 32 instead of 16, user ID 5 instead of 0",
            ),
            (
                json!({ "a": 1, "b": true, "c_s": 5, "expires_at": "2026-11-25T05:03:49Z" }),
                json!({ "a": 2, "b": false, "c_s": 30 }),
                "changed tenant web: a 2 instead of 1, b no instead of yes, c 30 s instead of 5 s and 1 more field",
            ),
        ] {
            assert_eq!(edit(before, after), format!("ada {words}"));
        }
    }

    #[test]
    #[allow(clippy::too_many_lines, reason = "a table")]
    fn deeds_name_their_objects() {
        let tenant = json!({ "daemon": "gpu0", "device_memory_limit": 4_u64 << 30, "max_clients": 2, "labels": { "slurm-job": "7", "slurm-user": "max" } });
        let daemon = json!({ "gpus": ["GPU-1", "GPU-2"], "mode": "static" });
        let token = json!({ "name": "ci", "grant": "operator" });
        let layout = json!({ "version": 3, "layout": { "steps": [] } });
        let applied = json!({ "applied": { "layout": "web_prod", "version": 3, "daemon": "gpu1" } });
        for (action, target, before, after, words) in [
            (
                TENANT,
                "tenants/web",
                None,
                Some(&tenant),
                "created tenant web on gpu0 with 4 GiB, at most 2 clients for job 7 of max",
            ),
            ("POST /tenants/{name}/delete", "tenants/web", Some(&tenant), None, "deleted tenant web"),
            ("expire", "tenants/web", Some(&tenant), None, "deleted tenant web, which had expired"),
            (
                "PUT /api/v1/host/spec",
                "tenants/web",
                Some(&tenant),
                None,
                "deleted tenant web, with the host file",
            ),
            ("seed", "daemons/gpu0", None, Some(&daemon), "created daemon gpu0 on 2 GPUs, static"),
            (
                "POST /daemons/{name}/cordon",
                "daemons/gpu0",
                Some(&daemon),
                Some(&token),
                "cordoned daemon gpu0",
            ),
            ("DELETE /api/v1/daemons/{name}", "daemons/gpu0", None, None, "deleted daemon gpu0"),
            ("POST /foreign-daemons/{id}/adopt", "daemons/gpu0", None, Some(&daemon), "adopted daemon gpu0"),
            (
                "DELETE /daemons/{name}/partitions/{partition}",
                "daemons/gpu0",
                None,
                None,
                "deleted partition of daemon gpu0",
            ),
            (
                "PUT /api/v1/layouts/{name}",
                "layouts/web_prod",
                None,
                Some(&layout),
                "saved layout web_prod v3",
            ),
            (
                "POST /layouts/{name}/apply",
                "layouts/web_prod",
                None,
                Some(&applied),
                "applied layout web_prod v3 to gpu1",
            ),
            ("POST /api/v1/replays", "replays", None, Some(&applied), "replayed layout web_prod v3 on gpu1"),
            ("POST /api/v1/layouts/{name}/apply", "layouts/web_prod", None, None, "applied layout web_prod"),
            (
                "POST /api/v1/tokens",
                "tokens/0123456789abcdef",
                None,
                Some(&token),
                "created token ci (operator)",
            ),
            (
                "POST /tokens/{id}/revoke",
                "tokens/0123456789abcdef",
                Some(&token),
                Some(&token),
                "revoked token ci",
            ),
            (
                "POST /tokens/{id}/end-sessions",
                "tokens/0123456789abcdef",
                None,
                None,
                "ended the sessions of token 0123456789abcdef",
            ),
            (
                "POST /api/v1/clients/{id}/terminate",
                "clients/42-7/terminate",
                None,
                None,
                "terminated client 42",
            ),
            (
                "POST /api/v1/incidents/{id}/acknowledge",
                "incidents/5/acknowledge",
                None,
                None,
                "acknowledged incident 5",
            ),
            (
                "POST /api/v1/gpus/{gpu}/replace",
                "gpus/GPU-2c00d356-38b2/replace",
                None,
                None,
                "replaced GPU 2c00d356",
            ),
            (
                "POST /api/v1/foreign-daemons/adopt-lost",
                "foreign-daemons/adopt-lost",
                None,
                None,
                "adopted the lost daemons",
            ),
            ("POST /settings/maintenance", "host/maintenance", None, None, "began maintenance"),
            ("POST /settings/confirm-host", "host/confirm", None, None, "confirmed this host"),
            ("POST /login", "session", None, None, "logged in"),
            ("backup", "/var/backup.db", None, None, "backed up the database"),
        ] {
            assert_eq!(
                said(action, target, before.cloned(), after.cloned()),
                format!("ada {words}"),
                "{action}"
            );
        }
    }

    #[test]
    fn refusals_name_no_route() {
        let refused = |action: &str, target: &str| {
            let problem = Some("urn:mps-manager:problem:not-admitted".to_owned());
            AuditRecord {
                outcome: AuditOutcome::Refused,
                problem,
                ..row("nobody", action, target, None, None)
            }
            .sentence(|_| None)
        };
        let nobody = "someone without credentials tried to";
        assert_eq!(
            refused(TENANT, "tenants/web"),
            format!("{nobody} set tenant web, which was refused: not admitted")
        );
        assert_eq!(
            refused("DELETE /api/v1/tokens/{id}", "tokens/{id}"),
            format!("{nobody} delete a token, which was refused: not admitted")
        );
        assert_eq!(
            refused("authenticate", ""),
            format!("{nobody} authenticate, which was refused: not admitted")
        );
    }

    #[test]
    fn actors_are_named_without_ids() {
        for (actor, words) in [
            ("token 0123456789abcdef (slurm)", "slurm"),
            ("uid 7", "ada"),
            ("uid 8", "user 8"),
            ("admin token", "admin"),
            ("manager", "the manager"),
        ] {
            assert_eq!(actor_words(actor, |uid| (uid == 7).then(|| "ada".to_owned())), words);
        }
    }
}
