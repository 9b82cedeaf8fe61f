"""Changes the room's message twice a second, until it is ended."""

import http.client
import json
import sys
import time

number = 0
while True:
    number += 1
    connection = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]), timeout=20)
    connection.request("PATCH", "/v1/rooms/42", json.dumps({"message": f"word {number}"}), {"Content-Type": "application/json"})
    connection.getresponse().read()
    connection.close()
    time.sleep(0.5)
