// Package check renders the manifests of k8s/ and reports invalid objects and broken rules, which a person would
// otherwise notice in production. It must never talk to a cluster. It is a module of its own, so that its
// dependencies do not become dependencies of the product.
//
// Render turns a kustomization into objects, Decode reads them strictly into their types, and Problems runs every
// rule over them. A rule is a function from a set of objects to complaints; broken_test.go breaks good manifests in
// one way per rule.
package check
