"""The parts of Mesh and AsyncMesh: names and subjects, a connection per event loop, answers, streams, payloads. It
never imports a framework or an adapter."""
