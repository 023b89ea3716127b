//! The drafts of one step: a chain or a tree.

/// What was drafted: the nodes of a tree, whose root is the last token of the text.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Draft {
    /// What drafted it, below [`Drafter::kinds`](crate::Drafter::kinds): drafts of one kind stand equally often.
    pub kind: usize,
    /// The token of each node.
    pub tokens: Vec<u32>,
    /// What each node follows: 0 the last token of the text, i node i - 1.
    pub parents: Vec<usize>,
    /// The share of earlier occurrences that agree with the path down to each node; empty where
    /// the drafter does not know it.
    pub shares: Vec<f32>,
}

impl Draft {
    /// Tokens that follow one another.
    pub(crate) fn chain(kind: usize, tokens: Vec<u32>) -> Self {
        Draft { kind, parents: (0..tokens.len()).collect(), tokens, shares: Vec::new() }
    }

    /// Keeps the first `count` nodes. What a node follows comes before it.
    pub fn truncate(&mut self, count: usize) {
        self.tokens.truncate(count);
        self.parents.truncate(count);
        self.shares.truncate(count);
    }

    /// How deep each row of a run lies: 0 for the last token of the text, then that of each node.
    pub fn depths(&self) -> impl Iterator<Item = usize> {
        let mut depths = vec![0];
        for parent in &self.parents {
            depths.push(depths[*parent] + 1);
        }
        depths.into_iter()
    }

    /// The node behind `parent` with this token, numbered as parents are.
    pub fn child(&self, parent: usize, token: u32) -> Option<usize> {
        let nodes = self.parents.iter().zip(&self.tokens);
        (1..).zip(nodes).find(|(_, node)| *node == (&parent, &token)).map(|(node, _)| node)
    }

    /// How many of the drafts stand, if the text goes on with `next`.
    pub fn stands(&self, next: &[u32]) -> usize {
        let mut node = Some(0);
        let stood = next.iter().take_while(|token| {
            node = node.and_then(|node| self.child(node, **token));
            node.is_some()
        });
        stood.count()
    }
}
