"""PyObjC's modules where there is no PyObjC: scripts written for it on a Mac run here unchanged."""
