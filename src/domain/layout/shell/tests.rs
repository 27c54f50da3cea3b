use super::*;

/// GPU and chunks of each addition.
fn adds(script: &str) -> Vec<(Role, u32)> {
    let layout = read(script).unwrap_or_else(|error| panic!("{script}\n{error}"));
    layout.adds().map(|add| (add.gpu, add.chunks)).collect()
}

#[test]
fn a_script_becomes_a_layout() {
    let script = "#!/bin/sh\n# sm_partition add 9 9\necho \"sm_partition add 0 7\" | nvidia-cuda-mps-control\n\
                  nvidia-cuda-mps-control <<EOF\nsm_partition add 0 4\nsm_partition add 1 15\nEOF\n";
    let layout = read(script).expect("understood");
    let adds: Vec<_> =
        layout.adds().map(|add| (add.gpu, add.partition.as_str().to_owned(), add.chunks)).collect();
    assert_eq!(adds, [(0, "part_1".into(), 7), (0, "part_2".into(), 4), (1, "part_3".into(), 15)]);
    let by_uuid =
        read("sm_partition add GPU-b 1; sm_partition add GPU-a 2; sm_partition add GPU-b 3").expect("read");
    assert_eq!(by_uuid.adds().map(|add| add.gpu).collect::<Vec<_>>(), [0, 1, 0]);
}

#[test]
fn it_is_understood_however_it_hands_them_over() {
    for script in [
        "echo sm_partition add 0 7 | nvidia-cuda-mps-control 2>&1 # the first\necho sm_partition add 0 4 >> all",
        "ID=$(echo sm_partition add 0 7 | nvidia-cuda-mps-control)\r\necho 'sm_partition add 0 4'|nvidia-cuda-mps-control\r\n",
        "echo \"sm_partition add 0 7\n# as many as are left\nsm_partition add 0 4\" | nvidia-cuda-mps-control",
        "printf 'sm_partition add 0 7\\nsm_partition add 0 4\\n' | nvidia-cuda-mps-control",
        "printf '%s\\n' 'sm_partition add 0 7' \\\n  'sm_partition add 0 4' | nvidia-cuda-mps-control",
        "echo -e \"sm_partition add 0 7\\nsm_partition add 0 4\" | nvidia-cuda-mps-control",
        "nvidia-cuda-mps-control <<< \"sm_partition add 0 7\"\nnvidia-cuda-mps-control <<<'sm_partition add 0 4'",
        "\tcat <<-'EOF' | nvidia-cuda-mps-control || exit 1\n\tsm_partition add 0 7\n\tEOF\nsm_partition add 0 4",
        "{ echo sm_partition add 0 7; echo sm_partition add 0 4; } | nvidia-cuda-mps-control",
        "(echo sm_partition add 0 7\necho sm_partition add 0 4) | nvidia-cuda-mps-control",
        "echo sm_partition add 0 7 | nvidia-cuda-mps-control &&\n  echo sm_partition add 0 4 | nvidia-cuda-mps-control",
        "echo quit | nvidia-cuda-mps-control\nsm_partition add 0 7\nsm_partition add 0 4\necho quit | nvidia-cuda-mps-control",
        // What is done beside them is nobody's business.
        "set -eu\nusage() { echo 'if you want to'; }\nif [ -z \"$1\" ]; then usage; fi\nwhile ! test -S x; do sleep 1; done\n\
         case $1 in a|b) ;; (*) exit 1 ;; esac\nn=$((3*(1+2)))\n[ -d x ] || { mkdir x; chmod 0 x; }\n\
         echo sm_partition add 0 7 | nvidia-cuda-mps-control\nfunction last {\n  true\n}\nfor i in 1 2; do\n  last &\ndone\n\
         echo sm_partition add 0 4 | nvidia-cuda-mps-control\n",
    ] {
        assert_eq!(adds(script), [(0, 7), (0, 4)], "{script}");
    }
}

#[test]
fn what_may_be_done_never_or_several_times_is_refused_with_its_line() {
    let add = "echo sm_partition add 0 7 | nvidia-cuda-mps-control";
    for (script, said) in [
        (format!("for i in 1 2 3; do\n  {add}\ndone"), "line 2: inside `for`"),
        (format!("for i in 1 2 3; do {add}; done"), "line 1: inside `for`"),
        (format!("for ((i=0; i<3; i++)); do {add}; done"), "line 1: inside `for`"),
        (format!("while read -r line\ndo\n\n{add}\ndone"), "line 4: inside `while`"),
        (format!("until {add}; do sleep 1; done"), "line 1: inside `until`"),
        (format!("if [ -e /dev/nvidia1 ]; then\n{add}\nfi"), "line 2: inside `if`"),
        (format!("case $1 in\n  two)\n    {add}\n    ;;\nesac"), "line 3: inside `case`"),
        (format!("more() {{\n  {add}\n}}\nmore\nmore"), "line 2: inside `function`"),
        (format!("more ()\n{{\n  {add}\n}}\nmore\nmore"), "line 3: inside `function`"),
        (format!("function more {{\n  {add}\n}}\nmore"), "line 2: inside `function`"),
        (format!("function more() {{\n  {add}\n}}\nmore"), "line 2: inside `function`"),
        (format!("while true; do if x; then {{ ({add}); }}; fi; done"), "line 1: inside `while`"),
        (
            "for i in 1 2; do\nnvidia-cuda-mps-control <<EOF\nsm_partition add 0 7\nEOF\ndone".into(),
            "inside `for`",
        ),
        ("while read -r l; do echo \"$l\"; done <<EOF\nsm_partition add 0 7\nEOF".into(), "not clear"),
        (format!("true\ntest -e x && {add}"), "line 2: done only if"),
        (format!("test -e x ||\n{add}"), "line 2: done only if"),
        (format!("test -e x && {{ true; {add}; }}"), "line 1: done only if"),
        (format!("{add} & {add} &"), "line 1: done in the background"),
        (
            format!("{add}\necho quit | nvidia-cuda-mps-control\n{add}"),
            "line 3: done after the daemon was ended on line 2",
        ),
    ] {
        let error = read(&script).expect_err(&script).to_string();
        assert!(error.contains(said), "{script}\n{error}");
    }
}

#[test]
fn what_cannot_be_understood_is_refused_with_its_line() {
    for (script, said) in [
        ("sm_partition add 0 7 8", "line 1: \"8\" is one word too many"),
        ("echo\necho sm_partition add 0 7 8 | nvidia-cuda-mps-control", "line 2: \"8\" is one word too many"),
        ("echo 'sm_partition add 0 7 8'", "one word too many"),
        (
            "nvidia-cuda-mps-control <<EOF\nlspart\nsm_partition add 0 7 now\nEOF",
            "line 3: \"now\" is one word",
        ),
        ("echo \"sm_partition add 0 7\" \"sm_partition add 0 4\"", "not clear"),
        ("echo \"sm_partition add 0 7\" 8", "not clear"),
        ("echo doing sm_partition add 0 7", "not clear"),
        ("echo 'doing sm_partition add 0 7'", "only `sm_partition add GPU CHUNKS`"),
        ("printf 'sm_partition add 0 7\\n' a b", "not clear"),
        ("printf 'sm_partition add 0 %s\\n' 7", "not clear"),
        ("ADD=\"sm_partition add 0 7\"\necho $ADD; echo $ADD", "line 1: it is not clear"),
        ("echo\nssh node2 'echo sm_partition add 0 7 | nvidia-cuda-mps-control'", "line 2: it is not clear"),
        ("bash -c 'for i in 1 2; do echo sm_partition add 0 7; done'", "not clear"),
        (
            "bash <<EOF\nfor i in 1 2; do\necho sm_partition add 0 7 | nvidia-cuda-mps-control\ndone\nEOF",
            "line 3",
        ),
        ("seq 2 | xargs -I{} echo sm_partition add {} 7", "not clear"),
        ("sm_partition add 0", "only `sm_partition add GPU CHUNKS`"),
        ("sm_partition add $GPU 7", "neither a number nor a UUID"),
        ("sm_partition add 0 $N", "no number"),
        ("echo\nsm_partition rm GPU-a/Dx4A", "line 2: a removal"),
        ("sm_partition add GPU-a 1\nsm_partition add 0 1", "throughout"),
        ("lspart", "no line"),
        ("sm_partition add 0 0", "0 chunks"),
        ("true\necho 'sm_partition add 0 7", "line 2: a quotation without its end"),
        ("true\ncat <<EOF\nsm_partition add 0 7", "line 2: a here-document without its end"),
        ("sm_partition add 0 7\ndone", "line 2: `done` closes nothing"),
        ("sm_partition add 0 7\nif true; then\n", "the script ends inside `if`"),
    ] {
        let error = read(script).expect_err(script).to_string();
        assert!(error.contains(said), "{script}\n{error}");
    }
}

#[test]
fn whatever_is_read_gives_an_answer() {
    let pieces = [
        "sm_partition",
        " add",
        " 0",
        " 7",
        "\n",
        ";",
        "&&",
        "||",
        "|",
        "&",
        "(",
        ")",
        "{ ",
        "} ",
        "\"",
        "'",
        "\\",
        "<<EOF",
        "\nEOF\n",
        "<<<",
        ">",
        "$",
        "`",
        "#",
        "echo ",
        "printf ",
        "for ",
        "do ",
        "done",
        "if ",
        "fi",
        "case ",
        "esac",
        "function ",
        "é",
        "\u{0}",
        "quit",
    ];
    let mut rng = fastrand::Rng::with_seed(7);
    for _ in 0..20_000 {
        let script: String = (0..rng.usize(0..24)).map(|_| pieces[rng.usize(0..pieces.len())]).collect();
        if let Ok(layout) = read(&script) {
            assert!(script.matches(COMMAND).count() >= layout.steps.len(), "{script:?}");
        }
    }
}

#[test]
fn a_refusal_shows_the_beginning_of_a_long_line_and_a_long_script_is_refused() {
    let long = format!("{} sm_partition rm 0", "x".repeat(10_000));
    let error = read(&long).expect_err("a removal").to_string();
    assert!(error.len() < 500 && error.ends_with('…'), "{error}");
    let error = read(&"sm_partition add 0 1\n".repeat(513)).expect_err("too many").to_string();
    assert!(error.contains("line 513: a layout has at most 512 steps"), "{error}");
}

#[test]
fn each_here_document_goes_to_its_own_command() {
    let one = |at: u32| {
        format!("nvidia-cuda-mps-control <<A{at} <<B{at}\nx\nA{at}\nsm_partition add {} 1\nB{at}\n", at % 7)
    };
    let many = (0..300).map(one).collect::<Vec<_>>().concat();
    let expected: Vec<(Role, u32)> = (0..300).map(|at| (at % 7, 1)).collect();
    assert_eq!(adds(&many), expected);
}
