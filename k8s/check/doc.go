// Package check renders the manifests of k8s/ and says what is wrong with them: that
// they are no valid objects, and that they break a rule which a person would find out
// about in production. It must never talk to a cluster, and it is a module of its own,
// so that what it needs does not become a dependency of the product.
//
// Render turns a kustomization into objects, Decode reads them strictly into their types,
// and Problems runs every rule over them. A rule is a function from a set of objects to
// complaints; broken_test.go breaks good manifests in one way for each of them.
package check
