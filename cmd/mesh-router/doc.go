// Command mesh-router is a router of a mesh on its own: it answers what clients
// ask of the registry. Services embed package router instead.
package main
