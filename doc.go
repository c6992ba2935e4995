// Package toolmesh is the vocabulary that every part of the mesh shares: the
// error type, its closed set of codes, and this map of the house.
package toolmesh
