import threading
import time

for _ in range(3):
    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()


def tool():
    return "threaded"
