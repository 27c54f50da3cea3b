//! The words for people in which the audit log is read; its rows keep the requests as they were.

use super::AuditRecord;

impl AuditRecord {
    /// The action in words, for example `set tenant`.
    pub fn action_words(&self) -> String {
        let Some((method, path)) = self.action.split_once(" /") else { return self.action.clone() };
        let path = path.strip_prefix("api/v1/").unwrap_or(path).trim_end_matches("?dry_run=true");
        let nouns: Vec<&str> =
            path.split('/').filter(|part| !part.starts_with('{') && *part != "-").collect();
        let (last, owner) = match nouns[..] {
            [.., "settings" | "host", last] | [last] => (last, ""),
            [.., owner, last] => (last, owner),
            [] => return self.action.clone(),
        };
        let singular = |noun: &str| noun.strip_suffix('s').unwrap_or(noun).replace('-', " ");
        match (method, last) {
            ("POST", "session" | "login") => "log in".to_owned(),
            ("DELETE", "session") | ("POST", "logout") => "log out".to_owned(),
            ("DELETE", "maintenance") => "end maintenance".to_owned(),
            ("POST", "maintenance") => "begin maintenance".to_owned(),
            (_, "spec") => "apply host file".to_owned(),
            ("POST", "new") => format!("create {}", singular(owner)),
            ("POST", noun) if noun.ends_with('s') && (owner.is_empty() || !noun.contains('-')) => {
                format!("create {}", singular(noun))
            }
            // Verbs of two words contain their object.
            ("POST", verb) if owner.is_empty() || verb.contains('-') => verb.replace('-', " "),
            ("POST", verb) => format!("{verb} {}", singular(owner)),
            ("PUT", noun) => format!("set {}", singular(noun)),
            (method, noun) => format!("{} {}", method.to_lowercase(), singular(noun)),
        }
    }

    /// The kind of the problem in words.
    pub fn problem_words(&self) -> Option<String> {
        let kind = self.problem.as_ref()?.rsplit(':').next()?;
        Some(kind.replace('-', " "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(action: &str, problem: &str) -> AuditRecord {
        let row = serde_json::json!({
            "id": 1, "at": "2026-11-25T05:03:49.123Z", "actor": "root", "granted": "admin", "origin": "socket", "count": 1,
            "previous": "", "hash": "", "action": action, "target": "", "outcome": "refused", "problem": problem,
        });
        serde_json::from_value(row).expect("a row")
    }

    #[test]
    fn requests_read_as_words() {
        for (action, words) in [
            ("PUT /api/v1/tenants/{name}", "set tenant"),
            ("DELETE /api/v1/tenants/{name}/leases/{id}", "delete lease"),
            ("POST /api/v1/tenants/{name}/leases", "create lease"),
            ("POST /api/v1/tenants/{name}/verify", "verify tenant"),
            ("POST /tenants", "create tenant"),
            ("POST /api/v1/tokens?dry_run=true", "create token"),
            ("POST /daemons/-/new", "create daemon"),
            ("POST /daemons/{name}/edit", "edit daemon"),
            ("POST /api/v1/daemons/{name}/uncordon", "uncordon daemon"),
            ("POST /api/v1/gpus/{gpu}/replace", "replace gpu"),
            ("POST /api/v1/layouts/import", "import layout"),
            ("POST /tenants/{name}/leases/{id}/revoke", "revoke lease"),
            ("POST /tokens/{id}/end-sessions", "end sessions"),
            ("POST /api/v1/session", "log in"),
            ("DELETE /api/v1/sessions", "delete session"),
            ("POST /settings/maintenance", "begin maintenance"),
            ("POST /settings/maintenance/end", "end maintenance"),
            ("DELETE /api/v1/host/maintenance", "end maintenance"),
            ("PUT /api/v1/host/spec", "apply host file"),
            ("POST /host/spec", "apply host file"),
            ("POST /settings/confirm-host", "confirm host"),
            ("POST /api/v1/host/confirm", "confirm"),
            ("POST /api/v1/foreign-daemons/adopt-lost", "adopt lost"),
            ("POST /foreign-daemons/{id}/adopt", "adopt foreign daemon"),
            ("GET /api/v1/audit", "get audit"),
            ("POST /api/v1/login-urls", "create login url"),
            ("expire", "expire"),
        ] {
            assert_eq!(row(action, "").action_words(), words, "{action}");
        }
    }

    #[test]
    fn problems_read_as_words() {
        let problem = |kind| row("seed", kind).problem_words();
        assert_eq!(problem("urn:mps-manager:problem:conflict").as_deref(), Some("conflict"));
        assert_eq!(problem("urn:mps-manager:problem:not-admitted").as_deref(), Some("not admitted"));
    }
}
