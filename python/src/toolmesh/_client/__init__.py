"""The parts of Mesh and AsyncMesh: names and subjects, one connection for each event loop, answers, streams, large
values. It never imports a framework, and nothing that is made of it."""
