/* The module fastomp_nvm.native._native: the method tables of gram.c, glm.c and greedy.c. */

#include "objectives.h"

static int fill(PyObject *module)
{
    if (find_blas() < 0)
        return -1;
    if (PyModule_AddFunctions(module, gram_methods) < 0 || PyModule_AddFunctions(module, glm_methods) < 0)
        return -1;
    return PyModule_AddFunctions(module, greedy_methods);
}

static PyModuleDef_Slot SLOTS[] = {
    {Py_mod_exec, fill},
#ifdef Py_mod_gil
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, NULL},
};

static struct PyModuleDef DEFINITION = {
    PyModuleDef_HEAD_INIT,
    .m_name = "fastomp_nvm.native._native",
    .m_doc = "Inner iterations of Algorithm 1 and GLM fits.",
    .m_slots = SLOTS,
};

PyMODINIT_FUNC PyInit__native(void)
{
    return PyModuleDef_Init(&DEFINITION);
}
