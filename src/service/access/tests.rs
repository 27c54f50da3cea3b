use super::*;

const MINUTE_MS: i64 = 60_000;
const LIMITS: SessionLimits = SessionLimits { idle_ms: 30 * MINUTE_MS, max_ms: 12 * 60 * MINUTE_MS };

fn opened(at: i64) -> (Access, Secret) {
    let users = UserMap { users: [].into(), groups: [].into() };
    let access = Access::new(&Secret::new([1; 32]), 0, users, LIMITS);
    let cookie = Secret::new([2; 32]);
    let digest = cookie.digest();
    access.begin_session(LoginSession {
        digest,
        holder: SessionHolder::AdminToken,
        created_at: at,
        last_used_at: at,
    });
    (access, cookie)
}

#[test]
fn open_stream_keeps_session_until_its_maximum() {
    let begin = Clock::system().unix_ms();
    let (access, cookie) = opened(begin);
    let asks = |minutes: i64| access.session(&cookie, Origin::Socket, begin + minutes * MINUTE_MS);
    let (admission, _) = asks(0).expect("it has just begun");
    let (watched, other) =
        (admission.lifetime.in_use(Clock::system()), admission.lifetime.in_use(Clock::system()));
    access.sweep(begin + 700 * MINUTE_MS);
    assert!(asks(700).is_some(), "a stream is open");
    assert!(asks(720).is_none(), "twelve hours are over");
    drop((watched, other));
    assert!(asks(729).is_none());
}

#[test]
fn session_without_open_streams_ends_when_idle() {
    let begin = Clock::system().unix_ms();
    let (access, cookie) = opened(begin);
    let asks = |minutes: i64| access.session(&cookie, Origin::Socket, begin + minutes * MINUTE_MS);
    let (admission, _) = asks(0).expect("it has just begun");
    let (watched, other) =
        (admission.lifetime.in_use(Clock::system()), admission.lifetime.in_use(Clock::system()));
    drop(watched);
    assert_eq!(
        access.sweep(begin + 40 * MINUTE_MS).len(),
        1,
        "the other stream is still open, so a use is to be written"
    );
    drop(other);
    assert!(asks(71).is_none());
    assert!(access.sweep(begin + 71 * MINUTE_MS).is_empty());
}
