//go:build lanes_without_fence

package grants

// fenced is off, for the checker of lanes alone: see fence.go.
const fenced = false
