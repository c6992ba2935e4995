//go:build !lanes_without_fence

package grants

// fenced: a call is stopped that may have lost its turn. The checker of lanes is shown to
// find overlaps with a build that has it off.
const fenced = true
