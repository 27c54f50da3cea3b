//! The manager's database as an SQLite tool reaches it, while no manager runs.

use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions as _, Connection as _, Row as _, SqliteConnection};

use super::Served;

impl Served {
    /// Runs statements on the database.
    pub(crate) fn execute_sql(&self, statements: &str) {
        let statements = sqlx::AssertSqlSafe(statements.to_owned());
        self.on_database(async move |database| {
            sqlx::raw_sql(statements).execute(database).await.expect("the statements run");
        });
    }

    /// The same where the database may refuse; gives its error then.
    pub(crate) fn try_sql(&self, statements: &str) -> Result<(), String> {
        let statements = sqlx::AssertSqlSafe(statements.to_owned());
        self.on_database(async move |database| {
            let done = sqlx::raw_sql(statements).execute(database).await;
            done.map(drop).map_err(|error| error.to_string())
        })
    }

    /// The first column of all rows, as text.
    pub(crate) fn query_sql(&self, query: &str) -> Vec<String> {
        let query = sqlx::AssertSqlSafe(query.to_owned());
        self.on_database(async move |database| {
            let rows = sqlx::query(query).fetch_all(database).await.expect("the query runs");
            rows.iter().map(|row| row.get(0)).collect()
        })
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
