"""The tests of gfxgraph: in the folders of src/gfxgraph, those of the whole product at the top."""
