//! The modules of a crate as the compiler sees them: what each file defines, what it imports and what it names. Code that is
//! compiled for tests only is left out.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::iter::Peekable;
use std::path::Path;
use std::sync::LazyLock;

use proc_macro2::{Delimiter, Spacing, TokenStream, TokenTree, token_stream::IntoIter};

use super::{PACKAGES, sources};

/// A path as code writes it, or the address of a module.
pub(super) type Names = Vec<String>;

#[derive(Default)]
pub(super) struct Module {
    pub(super) file: String,
    /// What `crate` means in it: a package inside `src` is a module of this one to its users.
    pub(super) root: Names,
    /// What it defines.
    pub(super) items: BTreeSet<String>,
    /// What its `use` declarations bring in, by the name that it has here.
    pub(super) imports: BTreeMap<String, Names>,
    /// Imports that are handed on; the file itself may not use them.
    pub(super) exports: BTreeSet<String>,
    pub(super) globs: Vec<Names>,
    /// Every path in the code, single names included.
    pub(super) paths: BTreeSet<Names>,
    /// The structs and enums, those inside functions included.
    pub(super) types: Vec<String>,
}

/// All modules of a package: those of its library and of its binaries.
#[derive(Default)]
pub(super) struct SourceTree {
    pub(super) modules: BTreeMap<Names, Module>,
}

type Tokens = Peekable<IntoIter>;

impl SourceTree {
    /// This package's `src`, read once.
    pub(super) fn of_this_package() -> &'static Self {
        static TREE: LazyLock<SourceTree> = LazyLock::new(SourceTree::read_src);
        &TREE
    }

    fn read_src() -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        let mut files = Vec::new();
        sources(&root, &mut files);
        let name = |file: &Path| file.strip_prefix(&root).expect("a file of src").display().to_string();
        let texts = files.iter().map(|file| (name(file), fs::read_to_string(file).expect("text"))).collect();
        Self::parse(&texts, &PACKAGES)
    }

    /// Files by their path inside `src`, and the folders that are packages.
    pub(super) fn parse(files: &BTreeMap<String, String>, packages: &[&str]) -> Self {
        let mut tree = Self::default();
        tree.add_file(files, "lib.rs", Vec::new(), &Vec::new());
        for package in packages {
            let root = vec![(*package).to_owned()];
            tree.add_file(files, &format!("{package}/mod.rs"), root.clone(), &root);
        }
        tree
    }

    fn add_file(&mut self, files: &BTreeMap<String, String>, file: &str, address: Names, root: &Names) {
        let text = files.get(file).unwrap_or_else(|| panic!("{file} is missing"));
        let tokens: TokenStream = text.parse().unwrap_or_else(|why| panic!("{file}: {why}"));
        self.add_module(files, file, address, root, tokens);
    }

    fn add_module(
        &mut self,
        files: &BTreeMap<String, String>,
        file: &str,
        address: Names,
        root: &Names,
        body: TokenStream,
    ) {
        let mut module = Module { file: file.to_owned(), root: root.clone(), ..Module::default() };
        let mut public = false;
        let mut tokens = body.into_iter().peekable();
        while let Some(token) = tokens.next() {
            let word = match token {
                TokenTree::Punct(punct) if punct.as_char() == '#' => {
                    attribute(&mut tokens, &mut module);
                    continue;
                }
                TokenTree::Ident(word) => word.to_string(),
                TokenTree::Group(group) => {
                    read_code(group.stream(), &mut module);
                    continue;
                }
                _ => continue,
            };
            match word.as_str() {
                "pub" => {
                    public = true;
                    tokens.next_if(|next| matches!(next, TokenTree::Group(_)));
                    continue;
                }
                // The other `use` is of what a returned type captures: `impl Iterator + use<'s>`.
                "use" if !matches!(tokens.peek(), Some(TokenTree::Punct(_))) => {
                    read_use(&mut tokens, public, &mut module);
                }
                "mod" => {
                    let name = ident(&mut tokens).expect("the name of a module");
                    let mut inner = address.clone();
                    inner.push(name);
                    match tokens.next() {
                        Some(TokenTree::Group(group)) => {
                            self.add_module(files, file, inner, root, group.stream());
                        }
                        _ => {
                            let path = inner.join("/");
                            let own = format!("{path}.rs");
                            let own = if files.contains_key(&own) { own } else { format!("{path}/mod.rs") };
                            self.add_file(files, &own, inner, root);
                        }
                    }
                }
                "macro_rules" => {
                    tokens.next();
                    module.items.extend(ident(&mut tokens));
                }
                "struct" | "enum" => {
                    let name = ident(&mut tokens).expect("the name of a type");
                    module.types.push(name.clone());
                    module.items.insert(name);
                }
                "trait" | "type" | "const" | "static" | "fn" => module.items.extend(ident(&mut tokens)),
                _ => read_path(word, &mut tokens, &mut module),
            }
            public = false;
        }
        self.modules.insert(address, module);
    }
}

/// The next token where it is a name and no keyword.
fn ident(tokens: &mut Tokens) -> Option<String> {
    let word = match tokens.peek()? {
        TokenTree::Ident(word) => word.to_string(),
        _ => return None,
    };
    if ["fn", "unsafe", "async", "extern", "mut"].contains(&word.as_str()) {
        return None;
    }
    tokens.next();
    Some(word)
}

/// Reads an attribute behind its `#`; what it keeps for tests is skipped.
fn attribute(tokens: &mut Tokens, module: &mut Module) {
    tokens.next_if(|next| matches!(next, TokenTree::Punct(bang) if bang.as_char() == '!'));
    let Some(TokenTree::Group(group)) = tokens.next() else { return };
    if group.stream().to_string().replace(' ', "") != "cfg(test)" {
        read_code(group.stream(), module);
        return;
    }
    for token in tokens.by_ref() {
        match token {
            TokenTree::Punct(end) if end.as_char() == ';' => return,
            TokenTree::Group(body) if body.delimiter() == Delimiter::Brace => return,
            _ => {}
        }
    }
}

/// Code inside an item: paths, and the `use` declarations and types of functions.
fn read_code(code: TokenStream, module: &mut Module) {
    let mut tokens = code.into_iter().peekable();
    let mut field = false;
    while let Some(token) = tokens.next() {
        match token {
            TokenTree::Group(group) => read_code(group.stream(), module),
            TokenTree::Punct(punct) if punct.as_char() == '#' => attribute(&mut tokens, module),
            TokenTree::Punct(punct) if punct.as_char() == '.' && punct.spacing() == Spacing::Alone => {
                field = true;
                continue;
            }
            TokenTree::Ident(_) if field => {}
            TokenTree::Ident(word) => match word.to_string().as_str() {
                "use" if !matches!(tokens.peek(), Some(TokenTree::Punct(_))) => {
                    read_use(&mut tokens, false, module);
                }
                "struct" | "enum" => module.types.extend(ident(&mut tokens)),
                word => read_path(word.to_owned(), &mut tokens, module),
            },
            _ => {}
        }
        field = false;
    }
}

/// Whether `::` comes next; it is taken.
fn separator(tokens: &mut Tokens) -> bool {
    let first = |token: &TokenTree| matches!(token, TokenTree::Punct(colon) if colon.as_char() == ':' && colon.spacing() == Spacing::Joint);
    tokens.next_if(first).is_some() && tokens.next().is_some()
}

fn read_path(first: String, tokens: &mut Tokens, module: &mut Module) {
    let mut path = vec![first];
    while separator(tokens) {
        match tokens.peek() {
            Some(TokenTree::Ident(name)) => path.push(name.to_string()),
            _ => break,
        }
        tokens.next();
    }
    module.paths.insert(path);
}

fn read_use(tokens: &mut Tokens, public: bool, module: &mut Module) {
    let declaration =
        tokens.by_ref().take_while(|token| !matches!(token, TokenTree::Punct(end) if end.as_char() == ';'));
    let declaration: TokenStream = declaration.collect();
    read_use_tree(&[], declaration, public, module);
}

/// One `use` tree, or several between commas, below a prefix.
fn read_use_tree(prefix: &[String], tree: TokenStream, public: bool, module: &mut Module) {
    let mut path = prefix.to_vec();
    let (mut alias, mut named) = (None, false);
    let mut tokens = tree.into_iter();
    loop {
        let token = tokens.next();
        match &token {
            Some(TokenTree::Ident(word)) if word == "as" => {
                alias = tokens.next().map(|name| name.to_string());
            }
            Some(TokenTree::Ident(word)) => {
                if word != "self" || path.is_empty() {
                    path.push(word.to_string());
                }
                named = true;
            }
            Some(TokenTree::Group(group)) => {
                read_use_tree(&path, group.stream(), public, module);
                named = false;
            }
            Some(TokenTree::Punct(punct)) if punct.as_char() == '*' => {
                module.globs.push(path.clone());
                named = false;
            }
            Some(TokenTree::Punct(punct)) if punct.as_char() == ':' => {}
            _ => {
                if named {
                    let name = alias.take().unwrap_or_else(|| path[path.len() - 1].clone());
                    if public {
                        module.exports.insert(name.clone());
                    }
                    module.imports.insert(name, path);
                }
                path = prefix.to_vec();
                named = false;
            }
        }
        if token.is_none() {
            return;
        }
    }
}
