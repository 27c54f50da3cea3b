//! The manager's database as somebody with a tool for SQLite reaches it, while no manager runs.

use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions as _, Connection as _, Row as _, SqliteConnection};

use super::Host;

impl Host {
    /// Runs statements on the database.
    pub(crate) fn execute_sql(&self, statements: &str) {
        let statements = sqlx::AssertSqlSafe(statements.to_owned());
        self.on_database(async move |database| {
            sqlx::raw_sql(statements).execute(database).await.expect("the statements run");
        });
    }

    /// The same where the database may refuse; gives what it said then.
    pub(crate) fn try_sql(&self, statements: &str) -> Result<(), String> {
        let statements = sqlx::AssertSqlSafe(statements.to_owned());
        self.on_database(async move |database| {
            let done = sqlx::raw_sql(statements).execute(database).await;
            done.map(drop).map_err(|error| error.to_string())
        })
    }

    /// The first column of all rows, as text.
    pub(crate) fn ask_sql(&self, query: &str) -> Vec<String> {
        let query = sqlx::AssertSqlSafe(query.to_owned());
        self.on_database(async move |database| {
            let rows = sqlx::query(query).fetch_all(database).await.expect("the query runs");
            rows.iter().map(|row| row.get(0)).collect()
        })
    }

    /// Makes the database what a manager of the schema before the newest would have left, with all that was in it.
    pub(crate) fn lay_older_schema(&self) {
        let (database, older) = (self.state("mps-manager.db"), self.dir().join("older.db"));
        let migrations = self.dir().join("migrations");
        std::fs::create_dir(&migrations).expect("a directory");
        let all = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/migrations")).expect("migrations");
        let mut files: Vec<_> = all.map(|file| file.expect("a file").path()).collect();
        files.sort();
        files.pop();
        for file in files {
            std::fs::copy(&file, migrations.join(file.file_name().expect("a name"))).expect("copied");
        }
        let options =
            SqliteConnectOptions::new().filename(&older).create_if_missing(true).foreign_keys(false);
        tokio::runtime::Runtime::new().expect("a runtime").block_on(async {
            let mut connection = options.connect().await.expect("a database");
            let migrator = sqlx::migrate::Migrator::new(migrations.as_path()).await.expect("migrations");
            migrator.run(&mut connection).await.expect("migrated");
            let attach = "ATTACH ? AS newest";
            let newest = database.to_str().expect("text").to_owned();
            sqlx::query(attach).bind(newest).execute(&mut connection).await.expect("attached");
            // What the triggers of the tables put there comes with the rows.
            let tables = "SELECT t.name, group_concat(c.name) FROM sqlite_schema AS t, pragma_table_info(t.name) AS c
                          WHERE t.type = 'table' AND t.name != '_sqlx_migrations'
                            AND c.name IN (SELECT name FROM pragma_table_info(t.name, 'newest'))
                          GROUP BY t.name ORDER BY t.name = 'sqlite_sequence'";
            let tables: Vec<(String, String)> =
                sqlx::query_as(tables).fetch_all(&mut connection).await.expect("tables");
            for (table, columns) in tables {
                let copy = format!(
                    "DELETE FROM main.{table}; INSERT OR REPLACE INTO main.{table} ({columns}) SELECT {columns} FROM newest.{table}"
                );
                let copy = sqlx::AssertSqlSafe(copy);
                sqlx::raw_sql(copy).execute(&mut connection).await.expect("copied");
            }
            connection.close().await.expect("closed");
        });
        std::fs::rename(&older, &database).expect("put in its place");
    }

    fn on_database<T>(&self, work: impl AsyncFnOnce(&mut SqliteConnection) -> T) -> T {
        let options =
            SqliteConnectOptions::new().filename(self.state("mps-manager.db")).create_if_missing(true);
        tokio::runtime::Runtime::new().expect("a runtime").block_on(async {
            let mut connection = options.connect().await.expect("a database");
            let answer = work(&mut connection).await;
            connection.close().await.expect("closed");
            answer
        })
    }
}
