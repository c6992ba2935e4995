// Command schemas prints what the checks need of the descriptions that Kubernetes, KEDA
// and the Prometheus operator keep of their objects: those of the kinds that the manifests
// have, without the explanations. It takes them from the modules' own files, some hundred
// megabytes, which is why the result is in git. It must write nothing by itself.
package main
