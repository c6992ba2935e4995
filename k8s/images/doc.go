// Command images makes the container images of Toolmesh as OCI layouts, without a
// container engine: that of the router from static binaries alone, that of the agent
// on a Debian root file system that mmdebstrap makes. The same sources and the same
// packages give the same digests.
//
// It is a module of its own, so that what it is built on never becomes a dependency
// of the product. It pushes nothing: that is for tools that know registries.
package main
