//! Words of the API for the values of an enum.

/// Gives an enum `as_str`, the word of the API for each value, and `ALL` of its values in this order.
#[macro_export]
macro_rules! api_words {
    ($name:ident: $($variant:ident $word:literal),+ $(,)?) => {
        impl $name {
            /// Every value.
            pub const ALL: [Self; [$($word),+].len()] = [$(Self::$variant),+];

            /// Returns the word of the API.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)+
                }
            }
        }
    };
}
