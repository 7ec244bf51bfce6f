"""How long every sample is, to the token, and a store of what was learned on the way.

length.py, media.py   Example -> Measured
targets.py            which tokens are trained on
part.py               the task: the rows of one part of a data file into the token store
store.py              the token store
hints.py              lengths written back beside the rows, for packing online
"""

# The revision of the code that gives token ids and lengths: ingest/, media/ headers, measure/. Raise it by one with any
# change there after which some row would be measured otherwise, also by a fix; a change to one model family raises
# that family's `revision` instead. It is part of the token store's name and of an output's identity: tokens measured
# by the old rule are then measured again, and an output begun by it is refused. Releases need no raise: the version is
# part of both as well.
REVISION = 6
