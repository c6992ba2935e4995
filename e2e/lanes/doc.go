// Package lanes checks that calls of one lane never overlap: three agents, whose tools
// write down when they run, while agents are killed, frozen and cut off.
//
// MESH_LANES_CALLS is how many calls are to succeed, MESH_LANES_TAGS are build tags of
// the agents: with lanes_without_fence the checker must find overlaps.
package lanes
