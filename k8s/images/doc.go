// Command images makes the container images of Toolmesh as OCI layouts, without a container engine: the router's
// from static binaries alone, the agent's on a Debian root file system made by mmdebstrap. The same sources and the
// same packages give the same digests.
//
// It is a module of its own, so that its dependencies do not become dependencies of the product. It pushes nothing:
// that is for tools that know registries.
package main
