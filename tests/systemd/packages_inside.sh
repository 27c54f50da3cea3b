# What tests/systemd/packages.sh does under systemd: sourced by run.sh, whose functions it uses.

deb() { DEBIAN_FRONTEND=noninteractive dpkg "$@" >>/var/log/dpkg-test.log 2>&1 || { tail -20 /var/log/dpkg-test.log; return 1; }; }
quietly() { "$@" >/dev/null; }
version() { mps-manager --version | cut -d' ' -f2; }
schema() { mps-manager doctor 2>/dev/null | sed -n 's/.*database .*schema version \([0-9]*\).*/\1/p'; }
# Everything that a package may leave, but for the enabled unit of an administrator.
left_over() {
    ls -d /etc/mps-manager /var/lib/mps-manager /run/mps-manager /usr/bin/mps-manager /usr/lib/systemd/system/mps-manager.service \
        /usr/share/doc/mps-manager /usr/lib/tmpfiles.d/mps-manager.conf /etc/systemd/system/multi-user.target.wants/mps-manager.service \
        /etc/systemd/system/mps-manager.service /usr/share/bash-completion/completions/mps-manager 2>/dev/null || true
}

scenario() {
    local copy
    cd /
    until_true "systemd answers" systemctl show --property=Version
    check "nothing of it is there before" [ -z "$(left_over)" ]

    # A host without a GPU: the package is installed, and the service waits for the driver.
    check "the package is installed" deb -i /scenario/old.deb
    check "its service is enabled" [ -L /etc/systemd/system/multi-user.target.wants/mps-manager.service ]
    check "its configuration is valid" quietly mps-manager config check --config /etc/mps-manager/config.toml
    check "the manual page and completions are there" quietly ls /usr/share/man/man1/mps-manager.1.gz /usr/share/bash-completion/completions/mps-manager
    check "the unit names the configuration" grep -q '^ExecStart=/usr/bin/mps-manager serve --config /etc/mps-manager/config.toml$' /usr/lib/systemd/system/mps-manager.service
    until_true "the service waits for the driver" says 'no driver yet'
    systemctl stop mps-manager 2>/dev/null || true
    systemctl reset-failed mps-manager 2>/dev/null || true
    # What it has written is a real host's, which a simulated one does not take over.
    rm -rf -- /var/lib/mps-manager/*

    echo 'sim = "h200x2"' >/tmp/config
    cat /etc/mps-manager/config.toml >>/tmp/config
    cp /tmp/config /etc/mps-manager/config.toml
    check "the service starts" systemctl start mps-manager
    until_true "all daemons are ready" ready
    mps-manager run --tenant demo -- mps-manager sim client --world /run/mps-manager/sim --spin 600 >/dev/null &
    client=$!
    until_true "the client is connected" says 'demo .* 1/1'
    before=$(pids)
    say "version $(version), schema $(schema), control daemon, server and client $before"

    check "it is upgraded" deb -i /scenario/new.deb
    check "to the next version" [ "$(version)" = 0.2.0 ]
    until_true "daemon, server and client are still the same" adopted
    check "the running manager is the new one" grep -q '0\.2\.0' <(mps-manager status -o json)
    check "the database went forward" [ "$(schema)" = 2 ]
    copy=$(ls /var/lib/mps-manager/mps-manager.before-1-*.db)
    check "with a copy of before" [ -s "$copy" ]
    check "the administrator's configuration stays" cmp -s /tmp/config /etc/mps-manager/config.toml
    until_true "the client still counts" says 'demo .* 1/1'

    # Back: the older program refuses the newer database and changes nothing; with the copy it serves again.
    check "the older package is installed again" deb -i /scenario/old.deb
    check "with its version" [ "$(version)" = 0.1.0 ]
    until_true "it refuses the newer database" grep -q 'newer' <(mps-manager serve --config /etc/mps-manager/config.toml 2>&1)
    check "daemon, server and client run on" alive
    systemctl stop mps-manager 2>/dev/null || true
    check "the copy is restored" quietly mps-manager restore "$copy" --config /etc/mps-manager/config.toml
    systemctl reset-failed mps-manager 2>/dev/null || true
    check "the service starts" systemctl start mps-manager
    until_true "daemon, server and client are still the same" adopted
    check "with the schema of before" [ "$(schema)" = 1 ]

    # Removed under load: nothing is ended. The package comes back, ends its daemons, and goes for good.
    check "the package is removed" deb -r mps-manager
    check "daemon, server and client run on" alive
    check "state and configuration stay" [ -s /var/lib/mps-manager/mps-manager.db ]
    check "the package is installed again" deb -i /scenario/new.deb
    until_true "and adopts what runs" adopted
    check "the unit is enabled" systemctl is-enabled --quiet mps-manager
    kill "$client"
    until_true "the client has left" says 'demo .* 0/1'
    check "the trial is ended" sh -c 'systemctl stop mps-manager && mps-manager sim down --state-dir /var/lib/mps-manager'
    check "no daemon runs" refuses pgrep -f nvidia-cuda-mps
    check "the package is purged" deb -P mps-manager
    check "and leaves nothing: $(left_over)" [ -z "$(left_over)" ]
    check "dpkg does not know it any more" refuses dpkg -s mps-manager
}
