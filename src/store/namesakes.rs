//! Names that differ only in hyphens and underscores.

use super::{Db, Result};

/// The daemon, tenant or layout, by its `kind`, whose name differs from this one only in hyphens and underscores.
pub async fn namesake(db: &mut Db, kind: &str, name: &str) -> Result<Option<String>> {
    let folded = name.replace('-', "_");
    let query = sqlx::query_scalar!(
        r#"SELECT name AS "name!" FROM daemons WHERE ?1 = 'daemon' AND replace(name, '-', '_') = ?2 AND name <> ?3
           UNION ALL SELECT name FROM tenants WHERE ?1 = 'tenant' AND replace(name, '-', '_') = ?2 AND name <> ?3
           UNION ALL SELECT name FROM layouts WHERE ?1 = 'layout' AND replace(name, '-', '_') = ?2 AND name <> ?3"#,
        kind,
        folded,
        name
    );
    Ok(query.fetch_optional(db).await?)
}
